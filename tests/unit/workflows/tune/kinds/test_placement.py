"""Where Q/DQ go: residual Adds are tried in INT8 where one reads float what another layer reads in INT8."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.rewrite_graphs.case import model
from tests.support.inspected import profiled
from tests.support.tuning import evidence, gain, proposed, situation
from trtopt.inspect.graph import read_graph
from trtopt.recipe import Recipe
from trtopt.workflows.tune.kinds.kind import Situation
from trtopt.workflows.tune.kinds.placement import KIND

ENCODER = """g (float[2,8] x, float[8,8] w) => (float[2,8] y) <float s = {0.1}, int8 z = {0}> {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    main = MatMul(d, w)
    y = Add(main, x)
}"""


def quantised(text: str = ENCODER, **recipe: str) -> Situation:
    made = model(text)
    for node in made.graph.node:
        node.name = node.output[0]
    timed = evidence(profiled("1", "y", 1.0), profiled("2", "main", 9.0), of=read_graph(made, {}))
    built = Recipe(**{"precision": "int8", **recipe})
    return replace(situation(evidence=timed), recipe=built, selected="int8.attention", data="samples.npz")


def test_both_ways_are_tried_with_the_time_of_the_adds() -> None:
    found = proposed(KIND, quantised())
    assert [*found] == ["residuals=skip", "residuals=both"]
    assert [dict(change.recipe) for change in found.values()] == [
        {"residuals": "skip"},
        {"residuals": "both"},
    ]
    assert all(change.makes_graph for change in found.values())
    assert gain(found["residuals=both"]) == pytest.approx(0.03)


@pytest.mark.parametrize(
    "given",
    [
        quantised(precision="fp16"),
        quantised(residuals="both"),
        quantised(ENCODER.replace("Add(main, x)", "Add(main, d)")),
        replace(quantised(precision="best"), selected="fp16"),
        replace(quantised(), data=None),
    ],
    ids=["float", "done already", "read in INT8 already", "float was faster", "no data"],
)
def test_nothing_is_tried_where_it_would_change_nothing(given: Situation) -> None:
    assert proposed(KIND, given) == {}
