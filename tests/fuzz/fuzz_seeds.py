"""Real files to mutate: what trtopt itself writes for a small model, and what other tools would give it."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper
from polygraphy.json import save_json

import trtopt
from tests.support.paths import DATA, ROOT
from trtopt.api import profile
from trtopt.builder.timing_cache import CacheFile, identity_of
from trtopt.device.backends import open_builder
from trtopt.files.manifests import write_manifest
from trtopt.records import AllocationEvent, MemoryPass, to_json
from trtopt.records.precision import CalibrationTable, TensorRange
from trtopt.workflows.profile.profile import PROFILE_FILE

_OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]

_RECIPE = """
batch = [1, 8]
dynamic = true
shapes = {ids = "Nx1,Nx8,Nx64", mask = "Nx8"}
backend = "tensorrt"
opt_level = 3
workspace_mib = 64
tactic_sources = ["CUDNN"]
timing_cache = "timing.cache"
compute_capability = ["9.0"]
plugins = ["a.so"]
precision = "int8"
calib = "data.npz"
verdict = false
bounds = {cosine = 0.99}
rewrite = "none"
jobs = 2
"""


def make_seeds(folder: Path) -> None:
    """Fill `folder` with one folder a kind of file."""
    _models(folder / "onnx")
    _results(folder)
    _data(folder)
    for kind, pattern in (("recipe", "profiles/*.toml"), ("spec", "models/*.toml")):
        (folder / kind).mkdir()
        for file in sorted(ROOT.glob(pattern)):
            shutil.copy(file, folder / kind)
    (folder / "recipe" / "every_key.toml").write_text(_RECIPE)
    shutil.copytree(DATA / "results", folder / "results")


def _models(folder: Path) -> None:
    folder.mkdir()
    for name, model in (("layers", _layers()), ("branches", _branches()), ("functions", _functions())):
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    external = _layers()
    weight = external.graph.initializer[0]
    (folder / "weights.bin").write_bytes(weight.raw_data)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", "5120")):
        weight.external_data.add(key=key, value=value)
    (folder / "external.onnx").write_bytes(external.SerializeToString())


def _value(name: str, *axes: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(axes))


def _layers() -> onnx.ModelProto:
    """What rules of `trtopt.rewrite` and the readers of shapes have something to do with."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((32, 40)).astype(np.float32)
    constants = {"w": weight, "b": weight[0], "axes": np.array([1], np.int64), "two": np.float32(2)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="matmul"),
        helper.make_node("Add", ["m", "b"], ["a"], name="bias"),
        helper.make_node("ReduceMean", ["a"], ["mean"], axes=[-1], name="mean"),
        helper.make_node("Sub", ["a", "mean"], ["centred"], name="centre"),
        helper.make_node("Pow", ["centred", "two"], ["square"], name="square"),
        helper.make_node("Unsqueeze", ["square", "axes"], ["u"], name="unsqueeze"),
        helper.make_node("Cast", ["u"], ["h"], to=TensorProto.FLOAT16, name="half"),
        helper.make_node("Cast", ["h"], ["f"], to=TensorProto.FLOAT, name="float"),
        helper.make_node("Squeeze", ["f", "axes"], ["y"], name="squeeze"),
    ]
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", [_value("x", "N", 32)], [_value("y", "N", 40)], weights)
    return helper.make_model(graph, opset_imports=_OPSETS[:1], ir_version=8)


def _branches() -> onnx.ModelProto:
    arms = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(kind, ["x"], [name], name=name)], name, [], [_value(name, "N", 4)]
        )
        for name, kind in (("then", "Relu"), ("else", "Sigmoid"))
    }
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0, name="sum"),
        helper.make_node("Cast", ["sum"], ["c"], to=TensorProto.BOOL, name="cast"),
        helper.make_node("If", ["c"], ["y"], name="if", **arms),
    ]
    graph = helper.make_graph(nodes, "g", [_value("x", "N", 4)], [_value("y", "N", 4)])
    return helper.make_model(graph, opset_imports=_OPSETS[:1], ir_version=8)


def _functions() -> onnx.ModelProto:
    inner = [
        helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.ones(4, np.float32))),
        helper.make_node("Add", ["a", "c"], ["s"]),
        helper.make_node("Relu", ["s"], ["b"]),
    ]
    function = helper.make_function("own", "Twice", ["a"], ["b"], inner, _OPSETS[:1])
    nodes = [
        helper.make_node("Twice", ["x"], ["t"], domain="own", name="once"),
        helper.make_node("Twice", ["t"], ["y"], domain="own", name="again"),
    ]
    graph = helper.make_graph(nodes, "g", [_value("x", "N", 4)], [_value("y", "N", 4)])
    return helper.make_model(graph, opset_imports=_OPSETS, ir_version=8, functions=[function])


def _results(folder: Path) -> None:
    """A build folder with what a GPU's engines leave too: layers that an inspector told."""
    build = folder / "build"
    manifest = trtopt.build(folder / "onnx" / "layers.onnx", build, batch=(1, 2), backend="tensorrt-rtx")
    layers = "batch1.layers.json"
    engine = msgspec.structs.replace(manifest.engines[0], layers=layers)
    with gzip.open(DATA / "inspector" / "tensorrt-8.6.0-r50_fp16.json.gz") as told:
        inspected = json.load(told, strict=False)
    inspected["Layers"] = inspected["Layers"][:8]
    (build / layers).write_text(json.dumps(inspected))
    write_manifest(build, msgspec.structs.replace(manifest, engines=(engine, manifest.engines[1])))
    result = trtopt.bench(build, backend="onnxruntime", duration=0.002, warmup=0.0, layers=True)
    points = tuple(msgspec.structs.replace(point, memory=_allocations()) for point in result.points)
    (build / "result.json").write_bytes(to_json(msgspec.structs.replace(result, points=points)))
    seen = profile(build, result=build / "result.json")
    (build / PROFILE_FILE).write_bytes(to_json(seen))
    builder = open_builder("tensorrt-rtx")
    (folder / "cache").mkdir()
    here = identity_of(builder.backend, builder.device)
    cache = folder / "cache" / "timing.cache"
    CacheFile(cache, here).save(b"\x01\x02" * 200, grown_from=None, merge=lambda ours, _: ours)


def _allocations() -> MemoryPass:
    def event(kind: str, address: int, size: int) -> AllocationEvent:
        return AllocationEvent(kind=kind, address=address, size_bytes=size, at_ms=0.5, phase="load")

    events = (event("allocate", 1, 64), event("deallocate", 1, 64), event("allocate", 2, 128))
    return MemoryPass(
        events=events,
        buffers_bytes=512,
        engine_device_bytes=1024,
        driver_used_bytes=4096,
        context_bytes=(128,),
    )


def _data(folder: Path) -> None:
    """Samples for an input `x` of shape [N, 4] and one `ids` of int64 [N]."""
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((6, 4)).astype(np.float32), "ids": np.arange(6)}
    for kind in ("npz", "polygraphy"):
        (folder / kind).mkdir()
    np.savez(folder / "npz" / "plain.npz", **arrays)
    np.savez_compressed(folder / "npz" / "packed.npz", x=np.asfortranarray(arrays["x"]), ids=arrays["ids"])
    save_json([arrays] * 2, str(folder / "polygraphy" / "data.json"))
    (folder / "table").mkdir()
    table = CalibrationTable(
        model_sha256="a" * 64,
        data_sha256="b" * 64,
        random_data=False,
        samples=8,
        method="max",
        tensors={"x": TensorRange(chosen=1.5, amax={"max": 1.5, "entropy": 1.2})},
    )
    (folder / "table" / "table.json").write_bytes(to_json(table))
