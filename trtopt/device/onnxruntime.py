"""ONNX Runtime on the CPU: the target that any machine has.

Its "engine" is the model with its shapes fixed and ONNX Runtime's own optimisations written into it.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trtopt.device.affinity import present_cores
from trtopt.device.api import (
    AllocationTracker,
    Binding,
    Context,
    DeviceBuffer,
    Event,
    Inputs,
    ProgressSink,
    Session,
    Stream,
)
from trtopt.device.building import BuiltEngine, LogSink
from trtopt.device.host import HostDevice, cpu_info
from trtopt.device.marks import UNMARKED, Marks
from trtopt.device.ort_layers import time_nodes
from trtopt.dtypes import numpy_dtype
from trtopt.errors import (
    BuildError,
    DataError,
    IncompatibleEngineError,
    UnsupportedOpError,
    UsageError,
)
from trtopt.onnxfile import load_graph
from trtopt.onnxgraph import graphs_of
from trtopt.onnxweights import external_files
from trtopt.records import Backend, BuildPlan, DeviceInfo, LayerPass, Shape, TensorSpec

NAME = "onnxruntime"
_PROTOBUF_LIMIT_BYTES = (1 << 31) - 1
_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(double)": "float64",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(int16)": "int16",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(float8e4m3fn)": "float8_e4m3fn",
    "tensor(float8e5m2)": "float8_e5m2",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}


def backend() -> Backend:
    """ONNX Runtime's version; it is a core dependency and always there."""
    import onnxruntime

    return Backend(name=NAME, version=onnxruntime.__version__)


class OnnxRuntimeTarget:
    """Runs the model on the CPU; see `device.api.Target`."""

    def __init__(self, marks: Marks = UNMARKED) -> None:
        self._device = HostDevice(marks)

    @property
    def device(self) -> HostDevice:
        """The host."""
        return self._device

    @property
    def backend(self) -> Backend:
        """ONNX Runtime and its version."""
        return backend()

    def load(self, engine: bytes, *, track: AllocationTracker | None = None) -> Session:
        """Open a model in memory."""
        if track is not None:
            raise no_allocator()
        return OnnxRuntimeSession(_open(engine), engine)

    def close(self) -> None:
        """Nothing is held."""


def no_allocator() -> UsageError:
    """The error for allocations that were to be followed here."""
    return UsageError(
        "--memory: ONNX Runtime on the CPU has no device allocator to follow",
        "leave --memory away, or measure a TensorRT engine on a GPU",
    )


def _options() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    cores = len(present_cores())
    if 0 < cores < (os.cpu_count() or 0):  # by default it starts threads outside of the cores it may use
        options.intra_op_num_threads = cores
    return options


def _open(engine: bytes) -> Any:
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(engine, _options(), providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001  (its exceptions share no base class but Exception)
        raise IncompatibleEngineError(
            f"ONNX Runtime cannot open the engine: {_first_line(error)}", "build it again on this machine"
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class OnnxRuntimeSession:
    """See `device.api.Session`."""

    def __init__(self, session: Any, engine: bytes) -> None:
        self._session = session
        self._engine = engine
        self._inputs = tuple(map(_spec, session.get_inputs()))
        self._outputs = tuple(map(_spec, session.get_outputs()))

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The model's inputs."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The model's outputs."""
        return self._outputs

    @property
    def device_memory_bytes(self) -> int | None:
        """Not known."""
        return None

    def context(self, shapes: Mapping[str, Shape]) -> Context:
        """Bind the model to these shapes; output shapes are found by one run on zeros."""
        for spec in self._inputs:
            shape = shapes[spec.name]
            fits = len(shape) == len(spec.shape) and all(
                isinstance(own, str) or own == axis for own, axis in zip(spec.shape, shape, strict=True)
            )
            if not fits:
                raise UsageError(
                    f"input {spec.name!r}: shape {shape} is not what the engine was built for ({spec.shape})",
                    "choose that batch or shape, or build an engine for this one",
                )
        return OnnxRuntimeContext(self._session, self._bindings(shapes))

    def _bindings(self, shapes: Mapping[str, Shape]) -> tuple[Binding, ...]:
        zeros = {spec.name: np.zeros(shapes[spec.name], numpy_dtype(spec.dtype)) for spec in self._inputs}
        outputs = self._session.run(None, zeros)
        return (
            *(
                Binding(spec.name, zeros[spec.name].dtype, tuple(shapes[spec.name]), True)
                for spec in self._inputs
            ),
            *(
                Binding(spec.name, output.dtype, output.shape, False)
                for spec, output in zip(self._outputs, outputs, strict=True)
            ),
        )

    def layer_pass(self, shapes: Mapping[str, Shape], data: Inputs, runs: int) -> LayerPass:
        """From ONNX Runtime's own profiler, in a session of its own."""
        bindings = self.context(shapes).bindings
        feeds = {one.name: np.asarray(data[one.name], one.dtype) for one in bindings if one.is_input}
        return time_nodes(self._engine, _options(), feeds, runs)

    def close(self) -> None:
        """Give it back."""
        self._session = None


def _spec(value: Any) -> TensorSpec:
    shape = tuple(axis if isinstance(axis, int) else (axis or "?") for axis in value.shape)
    return TensorSpec(name=value.name, dtype=_TYPES.get(value.type, "unknown"), shape=shape)


class OnnxRuntimeContext:
    """See `device.api.Context`."""

    def __init__(self, session: Any, bindings: tuple[Binding, ...]) -> None:
        self._session = session
        self._bindings = bindings
        self._bound: Any = None
        self._consumed: Event | None = None

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """All inputs and outputs."""
        return self._bindings

    def bind(self, buffers: Mapping[str, DeviceBuffer], consumed: Event | None = None) -> None:
        """Use these buffers from the next enqueue on."""
        self._consumed = consumed
        self._bound = self._session.io_binding()
        for binding in self._bindings:
            bind = self._bound.bind_input if binding.is_input else self._bound.bind_output
            bind(
                name=binding.name,
                device_type="cpu",
                device_id=0,
                element_type=binding.dtype.type,
                shape=binding.shape,
                buffer_ptr=buffers[binding.name].address,
            )

    def enqueue(self, stream: Stream) -> None:
        """Run, and return when it is done.

        Raises:
            DataError: an operator refuses its input, such as an index that is out of range.
        """
        try:
            self._session.run_with_iobinding(self._bound)
        except Exception as error:  # noqa: BLE001  (its exceptions share no base class but Exception)
            raise DataError(
                f"ONNX Runtime cannot run the model on this input: {_first_line(error)}",
                "see whether every value is one that the model admits",
            ) from None
        if self._consumed is not None:
            self._consumed.record(stream)

    def report_layers(self, report: Callable[[str, float], None], *, on_request: bool = False) -> None:
        """ONNX Runtime's profiler tells of a whole session: see `OnnxRuntimeSession.layer_pass`."""
        raise UsageError("ONNX Runtime reports no layer times run by run", "take its session's layer pass")

    def request_layers(self) -> bool:
        """There are none."""
        return False

    def inspect(self) -> str | None:
        """The engine is a model in ONNX, which describes itself."""
        return None

    def close(self) -> None:
        """Give it back."""
        self._bound = None
        self._session = None


class OnnxRuntimeBuilder:
    """Writes ONNX Runtime's optimised model with its shapes fixed; see `device.building.EngineBuilder`."""

    uses_timing_cache = False
    max_opset = None

    @property
    def backend(self) -> Backend:
        """ONNX Runtime and its version."""
        return backend()

    @property
    def device(self) -> DeviceInfo:
        """The host."""
        return cpu_info()

    def build(
        self,
        onnx: Path,
        types: Sequence[str],
        plan: BuildPlan,
        *,
        timing_cache: bytes | None,
        progress: ProgressSink,
        log: LogSink,
    ) -> BuiltEngine:
        """Fix the shapes that the plan fixes, and let ONNX Runtime optimise the graph for this CPU."""
        import onnx as onnx_library

        _refuse_tensorrt_settings(plan)
        progress("Fixing shapes", 0.0)
        model = load_graph(onnx)
        files = (onnx, *external_files(model, onnx))
        if sum(file.stat().st_size for file in files) > _PROTOBUF_LIMIT_BYTES:
            raise BuildError(
                f"{onnx}: above 2 GB, which the onnxruntime backend cannot hold in one file",
                "build with TensorRT, or measure a smaller variant on the CPU",
            )
        onnx_library.load_external_data_for_model(model, str(onnx.parent))
        _fix_shapes(model, plan)
        progress("Optimizing graph", 0.3)
        engine = _optimise(model)
        progress("Optimizing graph", 1.0)
        fixed = _open(engine)
        return BuiltEngine(
            engine=engine,
            inputs=tuple(map(_spec, fixed.get_inputs())),
            outputs=tuple(map(_spec, fixed.get_outputs())),
            config={"graph_optimization_level": "ORT_ENABLE_ALL", "execution_provider": "CPU"},
            timing_cache=None,
        )

    def merge_timing_caches(self, ours: bytes, theirs: bytes) -> bytes:
        """There are none."""
        raise UsageError("ONNX Runtime has no timing caches", "leave --timing-cache away")


def _refuse_tensorrt_settings(plan: BuildPlan) -> None:
    settings = plan.settings
    asked = {
        "--opt-level": settings.opt_level is not None,
        "--workspace": settings.workspace_bytes is not None,
        "--tactic-sources": settings.tactic_sources is not None,
        "--compute-capability": bool(settings.compute_capabilities),
        "--plugin": bool(settings.plugins),
    }
    for flag, is_asked in asked.items():
        if is_asked:
            raise UsageError(
                f"{flag}: means nothing to ONNX Runtime", f"leave {flag} away, or build with TensorRT"
            )


def _fix_shapes(model: Any, plan: BuildPlan) -> None:
    """Write the plan's fixed axes into the inputs; axes with a range stay open."""
    for value in model.graph.input:
        wanted = plan.shapes.get(value.name)
        if wanted is None:
            continue
        for axis, low, high in zip(value.type.tensor_type.shape.dim, wanted.min, wanted.max, strict=True):
            if low == high:
                axis.dim_value = low
    del model.graph.value_info[:]  # inferred again from the fixed shapes


def _optimise(model: Any) -> bytes:
    """ONNX Runtime's own optimised form of a model.

    Raises:
        UnsupportedOpError: an operator that it does not have; names the node.
        BuildError: it cannot open the model for another reason; with its words.
    """
    import onnxruntime

    with tempfile.TemporaryDirectory(prefix="trtopt-") as folder:
        target = Path(folder) / "optimised.onnx"
        options = _options()
        options.optimized_model_filepath = str(target)
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.log_severity_level = (
            4  # it warns that the file is meant for this CPU only, which is the point
        )
        try:
            onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # noqa: BLE001  (its exceptions share no base class but Exception)
            raise _refusal(model, _first_line(error)) from None
        return target.read_bytes()


_UNREGISTERED = re.compile(r"(?P<domain>[\w.]*):?(?P<operator>\w+)\(-?\d+\) is not a registered function/op")


def _refusal(model: Any, told: str) -> Exception:
    """What ONNX Runtime objects to; an operator that it lacks is named with its node."""
    match = _UNREGISTERED.search(told)
    if match is None:
        return BuildError(
            f"ONNX Runtime cannot build the model: {told}", "check the model's operators and types"
        )
    nodes = (node for graph in graphs_of(model.graph) for node in graph.node)
    name = next((node.name for node in nodes if node.op_type == match["operator"]), "")
    return UnsupportedOpError(
        f"ONNX Runtime has no operator {match['operator']!r} (node {name!r})",
        "build with a TensorRT that has a plugin for it, or replace the operator",
    )
