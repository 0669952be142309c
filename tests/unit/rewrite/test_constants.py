"""Constant nodes: every attribute in which ONNX lets them keep a value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from trtopt.device.ort.reference import Unoptimised
from trtopt.errors import InvalidModelError, UnsupportedOpError
from trtopt.onnxio.prepare import lower_constants
from trtopt.rewrite.rewrite import rewrite_model

X = np.arange(8, dtype=np.float32).reshape(2, 4)
_AS_FLOAT = [helper.make_node("Cast", ["e"], ["f"], to=1), helper.make_node("Mul", ["x", "f"], ["y"])]


def constant(**value: Any) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["c"], **value)


def empty(name: str, kind: int) -> onnx.NodeProto:
    """As `torch.onnx.export` writes no axes at all: a list of that type, and nothing in it."""
    node = constant()
    node.attribute.add(name=name, type=kind)
    return node


def sparse(name: str, places: list[Any], dims: Sequence[int] = (2, 4)) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.array([1.0, 2.0], np.float32), name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(places), "places"), dims)


def reader(op: str, *inputs: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, ["y"], **attrs)


def saved(nodes: Sequence[onnx.NodeProto], rank: int, file: Path) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.save(made, file)
    return made


@pytest.mark.parametrize(
    ("nodes", "rank"),
    [
        ([constant(value_float=2.5), reader("Mul", "x", "c")], 2),
        ([constant(value_floats=[1.0, 2.0, 3.0, 4.0]), reader("Add", "x", "c")], 2),
        ([constant(value_int=2), reader("Gather", "x", "c", axis=1)], 1),
        ([constant(value_ints=[2, 2, -1]), reader("Reshape", "x", "c")], 3),
        ([empty("value_ints", AttributeProto.INTS), reader("ConstantOfShape", "c")], 0),
        ([empty("value_floats", AttributeProto.FLOATS), reader("Concat", "c", "c", axis=0)], 1),
        ([constant(sparse_value=sparse("c", [1, 6])), reader("Mul", "x", "c")], 2),
        ([constant(value_string="a"), helper.make_node("Equal", ["c", "c"], ["e"]), *_AS_FLOAT], 2),
        ([constant(value_strings=["a", "b"]), helper.make_node("Size", ["c"], ["e"]), *_AS_FLOAT], 2),
    ],
    ids=lambda nodes: nodes[0].attribute[0].name if isinstance(nodes, list) else "",
)
@pytest.mark.parametrize("check", [True, False])
def test_a_constant_of_any_kind_is_carried(
    nodes: list[onnx.NodeProto], rank: int, check: bool, tmp_path: Path
) -> None:
    made = saved(nodes, rank, tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", check=check)
    after = onnx.load(tmp_path / "out.onnx")
    assert (trace.undone, trace.constants_lowered) == ((), 1)
    assert "Constant" not in {node.op_type for node in after.graph.node}
    wanted, found = (Unoptimised(it.SerializeToString()).run({"x": X})["y"] for it in (made, after))
    np.testing.assert_array_equal(found, wanted)


def test_constants_of_functions_count_at_each_call(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
        g (float[2,4] x) => (float[2,4] y) {a = own.twice(x) y = own.twice(a)}
        <domain: "own", opset_import: ["": 17]>
        twice (u) => (v) {c = Constant<value_floats=[2.0]>() v = Mul(u, c)}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", check=False)
    assert trace.constants_lowered == 2


def test_a_constant_that_is_an_output_stays_and_holds_a_tensor(tmp_path: Path) -> None:
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("a", "b")]
    kinds: list[dict[str, Any]] = [{"value_floats": [1.0, 2.0]}, {"value_floats": [3.0, 4.0]}]
    then, other = (
        helper.make_graph([helper.make_node("Constant", [], [out.name], **kind)], out.name, [], [out])
        for out, kind in zip(outputs, kinds, strict=True)
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["e"], to=TensorProto.BOOL),
        helper.make_node("If", ["e"], ["y"], then_branch=then, else_branch=other),
    ]
    saved(nodes, 1, tmp_path / "in.onnx")
    assert rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10").undone == ()
    branches = [item.g.node for item in onnx.load(tmp_path / "out.onnx").graph.node[-1].attribute]
    assert [[item.name for item in node[0].attribute] for node in branches] == [["value"], ["value"]]


@pytest.mark.parametrize("places", [[1, 6], [[0, 1], [1, 2]]])
def test_a_weight_may_be_sparse(places: list[Any], tmp_path: Path) -> None:
    made = saved([reader("Mul", "x", "w")], 2, tmp_path / "dense.onnx")
    made.graph.sparse_initializer.append(sparse("w", places))
    onnx.save(made, tmp_path / "in.onnx")
    rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    (weight,) = onnx.load(tmp_path / "out.onnx").graph.initializer
    assert numpy_helper.to_array(weight).tolist() == [[0, 1, 0, 0], [0, 0, 2, 0]]


@pytest.mark.parametrize(
    ("places", "dims", "error"),
    [
        ([1, 9], [2, 4], InvalidModelError),
        ([[0, 1], [0, -1]], [2, 4], InvalidModelError),
        ([1.0, 6.0], [2, 4], InvalidModelError),
        ([[0], [1]], [4, 2], InvalidModelError),
        ([1, 6], [-2, 4], InvalidModelError),
        ([1, 6], [1 << 20, 1 << 20], UnsupportedOpError),
    ],
)
def test_a_sparse_weight_that_cannot_be_written_out_is_refused(
    places: list[int], dims: list[int], error: type[Exception]
) -> None:
    graph = helper.make_graph([constant(sparse_value=sparse("w", places, dims))], "g", [], [])
    with pytest.raises(error, match="'c'"):
        lower_constants(graph)
