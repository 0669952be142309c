"""Regions of an INT8 graph that may be faster in float, from what their Q, DQ and reformats take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.rewrite_graphs.case import model
from tests.support.inspected import profiled
from tests.support.tuning import evidence, gain, proposed, situation
from trtopt.inspect.graph import read_graph
from trtopt.recipe import Recipe
from trtopt.workflows.tune.candidates import Situation
from trtopt.workflows.tune.graph_kinds import REGION

THREE = """g (float[2,8] x, float[8,8] w) => (float[2,8] y) <float s = {0.1}, int8 z = {0}> {
    q0 = QuantizeLinear(x, s, z)
    d0 = DequantizeLinear(q0, s, z)
    a = MatMul(d0, w)
    f = Softmax(a)
    q1 = QuantizeLinear(f, s, z)
    d1 = DequantizeLinear(q1, s, z)
    b = MatMul(d1, w)
    g = Softmax(b)
    q2 = QuantizeLinear(g, s, z)
    d2 = DequantizeLinear(q2, s, z)
    y = MatMul(d2, w)
}"""
"""Three regions of a product each, between float layers."""


def quantised(**changes: object) -> Situation:
    made = model(THREE)
    for node in made.graph.node:
        node.name = "a[1]" if node.output[0] == "a" else node.output[0]
    layers = [
        profiled("q a", "q0 d0", 3.0, dtype="float16", onnx_ops=("QuantizeLinear", "DequantizeLinear")),
        profiled("a", "a[1]", 1.0, dtype="int8"),
        profiled("q b", "q1", 1.5, is_reformat=True),
        profiled("b", "b", 1.0, dtype="int8"),
        profiled("y", "y", 4.0, dtype="int8"),
        profiled("rest", "f g", 1.0, dtype="float16"),
    ]
    timed = evidence(*layers, of=read_graph(made, {}))
    built = Recipe(precision="int8", verdict=False, exclude=("head",))
    whole = {"recipe": built, "data": "samples.npz", **changes}
    return replace(situation(evidence=timed), **whole)


def test_each_region_that_may_gain_is_tried_and_all_together() -> None:
    """INT8 doubles in FP16: a saves 3 - 1, b 1.5 - 1, and y, which has no Q of its own time, loses."""
    found = proposed(REGION, quantised())
    assert [*found] == ["float=a[1]", "float=b", "float=a[1]+1"]
    assert [gain(change) for change in found.values()] == pytest.approx([2 / 11.5, 0.5 / 11.5, 2.5 / 11.5])
    both = found["float=a[1]+1"]
    assert both.makes_graph
    assert both.recipe == {"precision": "int8", "verdict": False, "exclude": ("head", "a[[]1]", "b")}


def test_what_a_selection_left_in_float_stays_there() -> None:
    chosen = quantised(recipe=Recipe(precision="best"), selected="int8.part1", left=("c",))
    assert proposed(REGION, chosen)["float=b"].recipe["exclude"] == ("c", "b")


def test_the_forms_that_a_selection_chose_stay() -> None:
    chosen = quantised(recipe=Recipe(precision="best"), selected="int8.attention=on,gelu=half.part1")
    assert proposed(REGION, chosen)["float=b"].recipe["forms"] == "attention=on,gelu=half"


@pytest.mark.parametrize(
    "given",
    [
        quantised(recipe=Recipe(precision="fp16")),
        quantised(data=None),
        quantised(threshold=0.2),
        situation(recipe=Recipe(precision="int8"), data="samples.npz"),
    ],
    ids=["float", "no data", "below the threshold", "no profile"],
)
def test_nothing_is_tried_where_nothing_can_be_gained(given: Situation) -> None:
    assert proposed(REGION, given) == {}
