"""Rewrite rules that are off by default: tried where they find something, valued by what they touch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests.rewrite_graphs.case import model
from tests.support.inspected import profiled
from tests.support.tuning import evidence, gain, proposed, situation
from trtopt.inspect.graph import read_graph
from trtopt.recipe import Recipe
from trtopt.workflows.tune.graph_kinds import REWRITE

TWO_PRODUCTS = """
    # w: float[8,16]
    # u: float[8,16]
    g (float[2,8] x) => (float[2,16] y) {
        a = MatMul(x, w)
        b = MatMul(x, u)
        c = Relu(a)
        y = Add(c, b)
    }"""


def saved(text: str, path: Path) -> onnx.ModelProto:
    """A model whose nodes are called like what they make, in a file."""
    made = model(text)
    for node in made.graph.node:
        node.name = node.output[0]
    onnx.save(made, path)
    return made


def test_a_rule_is_tried_where_it_finds_something_with_the_time_that_it_touches(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    made = saved(TWO_PRODUCTS, path)
    timed = evidence(profiled("1", "a", 1.0), profiled("2", "rest", 3.0), of=read_graph(made, {}))
    found = proposed(REWRITE, situation(evidence=replace(timed, model=path)))
    assert [*found] == ["rule=merge-matmuls"]
    change = found["rule=merge-matmuls"]
    assert change.rule == "merge-matmuls"
    assert gain(change) == pytest.approx(0.15 * 0.25)
    assert change.evidence == "it changes 1 places, in 25.0% of the time"


def test_rules_that_builds_leave_out_are_tried_alone_and_all_together(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    made = model(
        "g (float[2,8] x) => (float[2,8] y) <float one = {1.0}>"
        "{a = Identity(x) b = Relu(a) c = Mul(b, one) y = Abs(c)}"
    )
    onnx.save(made, path)
    given = situation(evidence=replace(evidence(of=read_graph(made, {})), model=path))
    found = proposed(REWRITE, given)
    assert [*found] == ["rewrite=all", "rule=erase-identity", "rule=erase-arithmetic"]
    assert dict(found["rewrite=all"].recipe) == {"rewrite": "all"}
    without = replace(given, recipe=Recipe(rewrite="none"))
    assert "rewrite=all" not in proposed(REWRITE, without)


QUANTISED = """
    # w: float[8,16]
    # u: float[8,16]
    # s: float[]
    # z: int8[]
    g (float[2,8] x) => (float[2,16] y) {
        xq = QuantizeLinear(x, s, z)
        xd = DequantizeLinear(xq, s, z)
        wq = QuantizeLinear(w, s, z)
        wd = DequantizeLinear(wq, s, z)
        uq = QuantizeLinear(u, s, z)
        ud = DequantizeLinear(uq, s, z)
        a = MatMul(xd, wd)
        b = MatMul(xd, ud)
        c = Relu(a)
        y = Add(c, b)
    }"""


def test_what_a_rule_finds_before_quantising_alone_is_tried_by_quantising_again(tmp_path: Path) -> None:
    saved(TWO_PRODUCTS, tmp_path / "float.onnx")
    quantised = saved(QUANTISED, tmp_path / "int8.onnx")
    timed = evidence(
        profiled("1", "a", 1.0),
        profiled("2", "rest", 3.0),
        of=read_graph(quantised, {}),
        float_model=tmp_path / "float.onnx",
        float_sha256="b" * 64,
    )
    given = situation(evidence=replace(timed, model=tmp_path / "int8.onnx"), data="samples.npz")
    found = proposed(REWRITE, given)
    change = found["add-rule=merge-matmuls"]
    assert (dict(change.recipe), change.rule) == ({"add_rule": ("merge-matmuls",)}, None)
    assert change.makes_graph
    assert gain(change) == pytest.approx(0.15 * 0.25)
    again = replace(given, recipe=Recipe(add_rule=("merge-matmuls",)))
    for unchanged in (replace(given, data=None), again):
        assert "add-rule=merge-matmuls" not in proposed(REWRITE, unchanged)
