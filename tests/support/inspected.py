"""Small graphs, layers and passes for the tests of a look inside."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tests.support.paths import DATA
from trtopt.inspect.graph import Graph, read_graph
from trtopt.inspect.inspector import EngineLayer
from trtopt.records import EngineTensor, LayerPass, LayerTime, ProfiledLayer

STORED = DATA / "inspector"
KINDS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int64": TensorProto.INT64}


def stored(name: str) -> str:
    """A stored inspector's text, as TensorRT 8.6.0 wrote it."""
    return gzip.decompress((STORED / f"tensorrt-8.6.0-{name}.json.gz").read_bytes()).decode()


def node(op: str, inputs: str, outputs: str, name: str | None = None, **attributes: object) -> NodeProto:
    """`inputs` and `outputs` are names parted by blanks; the node is called after its output."""
    return helper.make_node(
        op, inputs.split(), outputs.split(), name=outputs.split()[0] if name is None else name, **attributes
    )


def graph(
    *nodes: NodeProto,
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str] = ("y",),
    weights: Mapping[str, np.ndarray] | None = None,
    dtype: str = "float32",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Graph:
    kind = KINDS[dtype]
    made = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(name, kind, list(axes)) for name, axes in inputs.items()],
        [_any(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)])
    return read_graph(model, shapes or {})


def _any(name: str) -> ValueInfoProto:
    value = ValueInfoProto()
    value.name = name
    return value


def zeros(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.zeros(shape, dtype)


def layer(
    name: str,
    kind: str = "CaskConvolution",
    *,
    onnx: str = "",
    inputs: str = "",
    outputs: str = "",
    **rest: object,
) -> EngineLayer:
    """Tensors are `name:dtype` parted by blanks."""
    return EngineLayer(
        name=name,
        kind=kind,
        onnx_nodes=tuple(onnx.split()),
        inputs=_tensors(inputs),
        outputs=_tensors(outputs),
        **rest,  # type: ignore[arg-type]
    )


def _tensors(text: str) -> tuple[EngineTensor, ...]:
    pairs = (part.partition(":") for part in text.split())
    return tuple(EngineTensor(name=name, dtype=dtype) for name, _, dtype in pairs)


def times(**ms: float) -> LayerPass:
    return LayerPass(runs=1, layers=tuple(LayerTime(name=name, ms=[value]) for name, value in ms.items()))


def profiled(name: str, onnx: str = "", ms: float | None = 1.0, **rest: object) -> ProfiledLayer:
    """A layer whose nodes are called like their operators."""
    nodes = tuple(onnx.split())
    rest = {"kind": "k", "onnx_ops": nodes, "mapped_by": "name"} | rest
    return ProfiledLayer(name=name, ms=ms, onnx_nodes=nodes, **rest)  # type: ignore[arg-type]
