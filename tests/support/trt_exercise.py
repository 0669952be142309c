"""trtopt's own builder and runtime, run against a surface."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import pytest

from tests.support.paths import ROOT
from tests.support.scripted_device.device import Script, ScriptedDevice
from tests.support.trt_behaviour import IMAGES, LOGITS
from tests.support.trt_surface import Surface
from trtopt.device.api import AllocationTracker, BuildInput, BuiltEngine, Session
from trtopt.device.tensorrt.builder import TensorRTBuilder
from trtopt.device.tensorrt.capability import ParseJob, ParserReport, parse
from trtopt.device.tensorrt.library import Library, load_library
from trtopt.device.tensorrt.runtime import TensorRTTarget
from trtopt.errors import TrtoptError
from trtopt.onnxio.graph_walk import RANGES
from trtopt.records import (
    BuildPlan,
    BuildSettings,
    DeviceInfo,
    LayerTactic,
    Profile,
    ShapeRange,
)
from trtopt.targets import MODULES, Target

DIGITS = ROOT / "models" / "digits" / "digits.onnx"
OPEN = ShapeRange(min=(1, 1, 8, 8), opt=(4, 1, 8, 8), max=(8, 1, 8, 8))
FIXED = ShapeRange(min=(8, 1, 8, 8), opt=(8, 1, 8, 8), max=(8, 1, 8, 8))
SHAPES = {IMAGES[0]: (8, 1, 8, 8)}
SMALL, ALL = (
    Profile(
        batch=ShapeRange(min=(1,), opt=(1,), max=(high,)),
        shapes={IMAGES[0]: ShapeRange(min=(1, 1, 8, 8), opt=(1, 1, 8, 8), max=(high, 1, 8, 8))},
    )
    for high in (4, 8)
)
SEVERAL: dict[str, Any] = {
    "ICudaEngine.num_optimization_profiles": 2,
    "ICudaEngine.get_tensor_profile_shape": lambda engine, name, index: [
        (batch, *SHAPES[name][1:]) for batch in ((1, 1, 4), (1, 1, 8))[index]
    ],
}
"""An engine with the profiles `SMALL` and `ALL`."""
RTX_DUMP = "tensorrt_rtx-1.7.1.116"
VERSIONS = ("tensorrt-8.6.0", "tensorrt-10.16.1.11", "tensorrt-11.4.0.106", RTX_DUMP)
each_version = pytest.mark.parametrize("dump", VERSIONS)
UNSUPPORTED: dict[str, Any] = {
    "OnnxParser.parse_from_file": False,
    "OnnxParser.parse": False,
    "OnnxParser.num_errors": 1,
    "ParserError.desc": "No importer registered for op: Conv",
    "ParserError.node_name": "first",
    "ParserError.node_operator": "Conv",
}


def library(surface: Surface) -> Library:
    """What `load_library` makes of a surface; the version that it states decides the row of the table."""
    name = next(name for name, module in MODULES.items() if module == surface.api["module"])
    with patch.dict(sys.modules, {MODULES[name]: surface.module}):
        return load_library(name)


def target(dump: str) -> Target:
    return library(Surface(dump)).target


def builder(surface: Surface) -> TensorRTBuilder:
    return TensorRTBuilder(library(surface), DeviceInfo(kind="gpu", name="a GPU"))


def every_setting(surface: Surface) -> BuildSettings:
    """All that this version offers."""
    return BuildSettings(
        opt_level=5,
        workspace_bytes=1 << 28,
        tactic_sources=("EDGE_MASK_CONVOLUTIONS", "jit_convolutions"),
        compute_capabilities=("8.9", "sm120") if library(surface).target.compute_capability_choice else (),
        reproducible=library(surface).target.editable_cache,
        aux_streams=2,
        avg_timing=4,
        tiling="full" if library(surface).target.tiling else None,
        l2_limit_bytes=1 << 20 if library(surface).target.tiling else None,
        build_route="-knob=1" if library(surface).target.build_routes else None,
    )


def build(
    surface: Surface,
    settings: BuildSettings | None = None,
    *,
    model: Path = DIGITS,
    types: tuple[str, ...] = ("float32",),
    shape: ShapeRange = OPEN,
    cache: bytes | None = None,
    told: list[tuple[Any, ...]] | None = None,
    multi_profile: tuple[Profile, ...] = (),
    io_layouts: Mapping[str, str] | None = None,
    tactics: Sequence[LayerTactic] | None = None,
) -> BuiltEngine:
    """Build the digits model; progress and log lines go to `told`."""
    by, heard = builder(surface), [] if told is None else told
    batch = ShapeRange(min=shape.min[:1], opt=shape.opt[:1], max=shape.max[:1])
    plan = BuildPlan(
        onnx_sha256="0" * 64,
        batch=batch,
        shapes={IMAGES[0]: shape},
        settings=settings or BuildSettings(),
        backend=by.backend,
        multi_profile=multi_profile,
        io_layouts=dict(io_layouts or {}),
    )
    return by.build(
        BuildInput(model, types, plan, cache, None if tactics is None else tuple(tactics)),
        progress=lambda phase, fraction: heard.append((phase, fraction)),
        log=lambda severity, message: heard.append((severity, message)),
    )


def flags_set(surface: Surface) -> list[str]:
    """Those that may change an engine: that caches tell their entries does not."""
    flags = [call["flag"].name for call in surface.called("IBuilderConfig.set_flag")]
    return [name for name in flags if name != "EDITABLE_TIMING_CACHE"]


def layers(surface: Surface) -> None:
    """Give the network eight layers: the model declares one result as FP32 and knows nothing of the others.

    Like 8.6, the network calls results FLOAT whatever they were in the file.
    """

    def made(kind: str, reads: str, makes: str, name: str = "(Unnamed Layer* 1)_output") -> Any:
        tensors = [
            surface.make("ITensor", name=name, dtype=surface.member("DataType", dtype))
            for dtype in (reads, makes)
        ]
        state = {"type": surface.member("LayerType", kind), "num_inputs": 2, "num_outputs": 1}
        return surface.make("ILayer", tensors=tensors, **state)

    network = [
        made("CONVOLUTION", "HALF", "HALF"),
        made("CAST", "HALF", "FLOAT"),
        made("UNARY", "FLOAT", "FLOAT"),
        made("SHAPE", "FLOAT", "INT32"),
        made("CONSTANT", "FLOAT", "FLOAT"),
        made("TOPK", "FLOAT", "INT32"),
        made("SOFTMAX", "FLOAT", "FLOAT", LOGITS[0]),
        made("CAST", "FLOAT", "HALF"),
    ]
    surface.returns |= {
        "INetworkDefinition.num_layers": len(network),
        "INetworkDefinition.get_layer": lambda _network, index: network[index],
        "ILayer.get_input": lambda layer, index: None if index else layer._state["tensors"][0],
        "ILayer.get_output": lambda layer, _index: layer._state["tensors"][1],
    }


def attention(surface: Surface) -> Any:
    """Give the network a convolution and an attention; returns that."""
    whole = surface.make("IAttention", decomposable=False)
    kinds = ("CONVOLUTION", "ATTENTION_INPUT", "ATTENTION_OUTPUT")
    network = [surface.make("ILayer", type=surface.member("LayerType", kind)) for kind in kinds]
    surface.returns |= {
        "INetworkDefinition.num_layers": len(network),
        "INetworkDefinition.get_layer": lambda _network, index: network[index],
        "IAttentionInputLayer.attention": whole,
    }
    return whole


def tracker(device: ScriptedDevice) -> AllocationTracker:
    return AllocationTracker(device.now)


def load(
    surface: Surface,
    *,
    track: AllocationTracker | None = None,
    device: ScriptedDevice | None = None,
    nvtx: bool = False,
) -> Session:
    """Load an engine; nothing but the session keeps what it was loaded with alive."""
    target = TensorRTTarget(library(surface), device or ScriptedDevice())
    target.device.profilers = SimpleNamespace(nvtx=nvtx)  # type: ignore[assignment]
    return target.load(b"engine", track=track)


def run(surface: Surface, *, track: bool = False) -> list[Any]:
    """Load, bind, enqueue and profile; what came of it."""
    device = ScriptedDevice(Script())
    tracked = tracker(device) if track else None
    session = load(surface, track=tracked, device=device)
    context = session.context(SHAPES)
    buffers = {binding.name: device.device_buffer(binding.nbytes) for binding in context.bindings}
    context.bind(buffers)
    stream, layers = device.stream(), []
    context.enqueue(stream)
    context.bind(buffers)
    context.report_layers(lambda name, ms: layers.append((name, ms)))
    context.enqueue(stream)
    context.report_layers(lambda name, ms: layers.append((name, ms)), on_request=True)
    context.enqueue(stream)
    layers.append(context.request_layers())
    seen = context.inspect()
    outcome = [session.inputs, session.outputs, session.device_memory_bytes, context.bindings, layers, seen]
    context.close()
    session.close()
    return [
        *outcome,
        [(event.kind, event.size_bytes, event.stream) for event in tracked.events] if tracked else [],
    ]


def _keep_allocator(context: Any, name: str, allocator: Any) -> bool:
    context._state["output_allocator"] = context._surface.hold(allocator)
    return True


def _execute_sized(context: Any, _stream: int) -> bool:
    """Ask for memory and state the shape, as TensorRT does before an enqueue returns."""
    surface, rows = context._surface, context._state.get("rows", 0) + 3
    context._state["rows"] = rows
    asked = {"tensor_name": LOGITS[0], "memory": 0, "size": rows * 40, "alignment": 256}
    told = {"tensor_name": LOGITS[0], "shape": (rows, 10)}
    held = context._state["output_allocator"]
    if surface.has("IOutputAllocator.reallocate_output_async"):
        address = surface.call_back(held, "reallocate_output_async", **asked, stream=0)
    else:
        address = surface.call_back(held, "reallocate_output", **asked)
    surface.call_back(held, "notify_shape", **told)
    return bool(address)


SIZED: dict[str, Any] = {
    "IExecutionContext.get_tensor_shape": lambda _context, name: SHAPES.get(name, (-1, 10)),
    "IExecutionContext.set_output_allocator": _keep_allocator,
    "IExecutionContext.execute_async_v3": _execute_sized,
}
"""An engine whose output has another size in each run: 3 rows, 6 rows, …"""


def run_sized(surface: Surface, device: ScriptedDevice) -> list[Any]:
    """Run an engine of `SIZED` twice: its bindings; then the output's shape and the memory in use."""
    session = load(surface, device=device)
    context, stream = session.context(SHAPES), device.stream()
    try:
        fixed = [binding for binding in context.bindings if not binding.is_data_dependent]
        context.bind({binding.name: device.device_buffer(binding.nbytes) for binding in fixed})
        outcome: list[Any] = [context.bindings]
        for _ in range(2):
            context.enqueue(stream)
            outcome.append((context.sized_outputs()[LOGITS[0]].shape, device.used))
        return outcome
    finally:
        context.close()
        session.close()


def refused(surface: Surface) -> ParserReport:
    """What the parser takes of the digits model, where it takes nothing."""
    name = library(surface).target.name
    surface.returns["ParserError.node"] = -1
    with (
        patch.dict(sys.modules, {str(surface.api["module"]): surface.module}),
        patch("trtopt.device.tensorrt.capability.first_gpu"),
    ):
        return parse(ParseJob(path=str(DIGITS), target=name), lambda phase, fraction: None)


def beside_fp16(folder: str) -> Path:
    """The digits model with one tensor in FP16, so that the others are held in FP32, and two ranges."""
    model = onnx.load(DIGITS)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, np.float16), "half"))
    told = {"ranges": {IMAGES[0]: 1.5, LOGITS[0]: 2.5, "unknown": 3.0}}
    model.metadata_props.add(key=RANGES, value=json.dumps(told))
    path = Path(folder) / "beside.onnx"
    onnx.save(model, path)
    return path


def exercise(dump: str, without: str = "") -> tuple[list[str], set[str]]:
    """Everything once: what came of it, and the names of TensorRT that were used on the way."""
    surface = Surface(dump, without=without)
    settings = every_setting(surface)
    outcome: list[Any] = [build(surface, settings, types=("float32", "float16", "int8"), cache=b"old")]
    by = builder(surface)
    if by.uses_timing_cache:
        outcome.append(by.merge_timing_caches(b"ours", b"theirs"))
    outcome += [run(surface), run(surface, track=True)]
    outcome.append(build(surface, multi_profile=(SMALL, ALL)).config)
    outcome.append(build(surface, io_layouts={IMAGES[0]: "chw4"}).config)
    if library(surface).target.algorithm_selector:
        recorded = build(surface, tactics=())
        outcome += [recorded.tactics, build(surface, tactics=recorded.tactics).tactics]
    surface.returns |= SEVERAL
    outcome.append(run(surface))
    if library(surface).target.weakly_typed:
        layers(surface)
        with tempfile.TemporaryDirectory() as folder:
            for types in (("float32", "float16"), ("float32", "float16", "int8")):
                outcome.append(build(surface, model=beside_fp16(folder), types=types))
    if surface.has("IAttentionInputLayer"):
        whole = attention(surface)
        outcome += [build(surface).config, whole.decomposable]
    sized = Surface(dump, SIZED, without)
    outcome.append(run_sized(sized, ScriptedDevice()))
    failing = Surface(dump, UNSUPPORTED, without)
    with pytest.raises(TrtoptError) as error:
        build(failing)
    outcome.append(refused(failing))
    return [*map(repr, outcome), str(error.value)], surface.touched | sized.touched | failing.touched
