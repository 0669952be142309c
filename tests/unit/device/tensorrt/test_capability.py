"""TensorRT-RTX's own parser: all that it refuses is found, and what is left it imports."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings, strategies as st
from onnx import TensorProto, helper

from tests.support.command_line import DIGITS
from trtopt.device.tensorrt.capability import ParseJob, ParserReport, parse
from trtopt.errors import BackendMissingError

pytest.importorskip("tensorrt_rtx")

TAKEN = ("Relu", "Sigmoid", "Neg")
"""Operators that it imports."""
HEAD = '<ir_version: 8, opset_import: ["": 17, "own": 1]>\n'


def parsed(path: Path) -> ParserReport:
    return parse(ParseJob(path=str(path), target="rtx"), lambda phase, fraction: None)


def refused_in(text: str, folder: Path) -> list[str]:
    onnx.save(onnx.parser.parse_model(HEAD + text), folder / "in.onnx")
    return [one.node or one.input for one in parsed(folder / "in.onnx").refused]


def test_a_model_that_is_taken_has_no_refusal() -> None:
    assert (parsed(DIGITS).refused, parsed(DIGITS).unknown) == ((), ())


@settings(deadline=None, max_examples=15)
@given(st.lists(st.sampled_from((*TAKEN, "Det", "own", "Scatter", "Reduction")), min_size=1, max_size=8))
def test_all_refused_nodes_are_found_wherever_they_stand(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str]
) -> None:
    """By what has no importer, what is a plugin, what fails on import with the node's name and without."""
    tensor, nodes, expected = "x", [], []
    shape = helper.make_tensor_value_info
    values = [shape(f"t{index}", TensorProto.FLOAT, [2, 4, 4]) for index in range(len(kinds))]
    for index, kind in enumerate(kinds):
        name, out = f"n{index}", f"t{index}"
        if kind in TAKEN:
            nodes.append(helper.make_node(kind, [tensor], [out], name=name))
        elif kind == "own":
            nodes.append(helper.make_node("Foo", [tensor], [out], name=name, domain="own"))
        elif kind == "Det":
            nodes.append(helper.make_node("Det", [tensor], [f"{out}_d"], name=name))
            nodes.append(helper.make_node("Relu", [tensor], [out], name=f"{name}_beside"))
        elif kind == "Scatter":
            made = ["ScatterND", [tensor, "place", "update"], [out]]
            nodes.append(helper.make_node(*made, name=name, reduction="mul"))
        else:
            made = ["ScatterElements", [tensor, "places", "updates"], [out]]
            nodes.append(helper.make_node(*made, name=name, reduction="mul"))
        expected += [] if kind in TAKEN else [name]
        tensor = out
    weights = [
        helper.make_tensor("place", TensorProto.INT64, [1, 3], [0, 0, 0]),
        helper.make_tensor("update", TensorProto.FLOAT, [1], [2.0]),
        helper.make_tensor("places", TensorProto.INT64, [1, 1, 1], [0]),
        helper.make_tensor("updates", TensorProto.FLOAT, [1, 1, 1], [2.0]),
    ]
    ends = [shape("x", TensorProto.FLOAT, [2, 4, 4]), shape(tensor, TensorProto.FLOAT, [2, 4, 4])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights, value_info=values[:-1])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    path = tmp_path_factory.mktemp("model") / "in.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    found = parsed(path)
    assert sorted(one.node for one in found.refused) == sorted(expected)
    assert found.unknown == ()


def test_nodes_inside_others_and_inside_functions_are_named(tmp_path: Path) -> None:
    inside = """g (float[1,4] x, bool c) => (float[1,4] y) {y = If(c) <
        then_branch = t () => (float[1,4] p) {[deep] p = own.Foo(x)},
        else_branch = e () => (float[1,4] q) {q = Neg(x)}>}"""
    assert refused_in(inside, tmp_path) == ["deep"]
    function = """g (float[4,4] x) => (float y) {y = own.f(x)}
        <domain: "own", opset_import: ["": 17]> f (p) => (r) {r = Det(p)}"""
    assert len(refused_in(function, tmp_path)) == 1


def test_an_input_of_a_type_that_there_is_not_is_refused_with_what_reads_it(tmp_path: Path) -> None:
    text = """g (string[1] s, float[1] x) => (string[1] u, float[1] y)
        {[read] t = Identity(s) u = Identity(t) y = Relu(x)}"""
    onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "in.onnx")
    found = parsed(tmp_path / "in.onnx")
    assert [one.input for one in found.refused] == ["s"]
    assert len(found.unknown) == 2


def test_behind_an_output_of_unknown_shape_nothing_is_claimed(tmp_path: Path) -> None:
    text = "g (float[1,4] x) => (float[1,4] y) {[odd] a = own.Foo(x) [after] y = Relu(a)}"
    onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "in.onnx")
    found = parsed(tmp_path / "in.onnx")
    assert ([one.node for one in found.refused], found.unknown) == (["odd"], ("after",))


def test_another_version_than_the_target_is_not_asked() -> None:
    with pytest.raises(BackendMissingError):
        parse(ParseJob(path=str(DIGITS), target="8.6"), lambda phase, fraction: None)
