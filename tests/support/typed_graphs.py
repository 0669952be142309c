"""Graphs for the tests of typed inputs and outputs, and mistakes to make in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.graphs import model_of, value
from trtopt.device.ort.reference import Unoptimised
from trtopt.onnxio.model_file import ModelFile
from trtopt.recipe import read_io_request
from trtopt.rewrite.typed_io.typed_graph import type_graph

FLOAT16 = TensorProto.FLOAT16
SHAPE = ("N", 3, 4, 4)
NORMALISE = "mean=123.7,116.3,103.5:std=58.4,57.1,57.4"
DTYPES = {"fp32": np.float32, "fp16": np.float16, "uint8": np.uint8}
EQUAL = "mean=127.5,127.5,127.5:std=58.4,57.1,57.4"


def array(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def constant(values: Any, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values), name)


def conv(pads: int = 0, *nodes: onnx.NodeProto, source: str = "x", weights: Any = ()) -> onnx.ModelProto:
    return model_of(
        *nodes,
        helper.make_node("Conv", [source, "w"], ["c"], name="conv", pads=[pads] * 4),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
        inputs=[value("x", SHAPE)],
        outputs=[value("y", ("N", 5, None, None))],
        weights=[constant(array(5, 3, 3, 3), "w"), *weights],
    )


def quantised(*, other: bool = False, transposed: bool = False, first: str = "") -> onnx.ModelProto:
    """x → Q → DQ → Conv; `other`: an output besides reads x. `transposed`: x is NHWC. `first`: before Q."""
    source = "t" if transposed or first else "x"
    nodes = [
        *([helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2])] if transposed else ()),
        *([helper.make_node(first, ["x"], ["t"], name="first")] if first else ()),
        helper.make_node("QuantizeLinear", [source, "s", "z"], ["q"], name="q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="d"),
        *([helper.make_node("Relu", ["x"], ["o"], name="reader")] if other else ()),
    ]
    made = conv(1, *nodes, source="d", weights=[constant(np.float32(0.25), "s"), constant(np.int8(0), "z")])
    if transposed:
        made.graph.input[0].CopyFrom(value("x", ("N", 4, 4, 3)))
    if other:
        made.graph.output.append(value("o", SHAPE))
    return made


def file_of(model: onnx.ModelProto) -> ModelFile:
    return ModelFile(model, Path(), external=False)


def typed(
    model: onnx.ModelProto, io: dict[str, str], normalize: dict[str, str] | None = None
) -> onnx.ModelProto:
    request = read_io_request(io, normalize or {}, None)
    return type_graph(file_of(model), request).model.proto


def run(model: onnx.ModelProto, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return Unoptimised(model.SerializeToString()).run({"x": x})["y"]


def in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The convolution and all behind it in FP16, as `quantize` leaves what it does not quantise."""
    graph = model.graph
    (first,) = (place for place, node in enumerate(graph.node) if node.op_type == "Conv")
    graph.node.insert(first, helper.make_node("Cast", [graph.node[first].input[0]], ["h"], to=FLOAT16))
    graph.node[first + 1].input[0] = "h"
    (weights,) = (item for item in graph.initializer if item.name == "w")
    weights.CopyFrom(constant(numpy_helper.to_array(weights).astype(np.float16), "w"))
    graph.node[-1].output[0] = "half"
    graph.node.append(helper.make_node("Cast", ["half"], ["y"], to=TensorProto.FLOAT))
    return model


def values_of(graph: onnx.GraphProto, kind: str, change: Any) -> None:
    """Change the initializers of a kind, by the end of their names."""
    for item in graph.initializer:
        if item.name.endswith(kind):
            item.CopyFrom(constant(np.ascontiguousarray(change(numpy_helper.to_array(item))), item.name))


def transposed_wrong(graph: onnx.GraphProto) -> None:
    (node,) = (node for node in graph.node if node.op_type == "Transpose")
    node.attribute[0].ints[:] = [0, 3, 2, 1]


MISTAKES: dict[str, Callable[[onnx.GraphProto], None]] = {
    "scale": lambda graph: values_of(graph, "s", lambda scale: scale * np.float32(1.01)),
    "axis": transposed_wrong,
    "channels": lambda graph: values_of(graph, "w", lambda weights: weights[:, ::-1]),
    "means": lambda graph: values_of(graph, "mean", lambda means: means[::-1]),
    "deviations": lambda graph: values_of(graph, "factor", lambda factors: factors[::-1]),
}


def normalising() -> onnx.ModelProto:
    sub = helper.make_node("Sub", ["x", "m"], ["s"], name="sub")
    return conv(0, sub, source="s", weights=[constant(np.float32(1), "m")])
