"""The form of an INT8 graph: another choice is tried where the graph has a place for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests.support.networks import Net
from tests.support.tuning import evidence, proposed, situation
from trtopt.inspect.graph import read_graph
from trtopt.recipe import Recipe
from trtopt.workflows.tune.candidates import Situation
from trtopt.workflows.tune.graph_kinds import PLACEMENT


def gated(folder: Path) -> Path:
    """A convolution behind a squeeze-and-excitation gate."""
    net = Net(x=["N", 32, 16, 16])
    pooled = net.node("GlobalAveragePool", "pool", net.conv("first", "x", 32, 32))
    gate = net.node("Sigmoid", "sigmoid", net.conv("squeeze", pooled, 32, 32, kernel=1))
    net.conv("last", net.node("Mul", "gate", "first", gate), 32, 32)
    onnx.save(net.model("last"), folder / "gated.onnx")
    return folder / "gated.onnx"


def of(model: Path, selected: str = "int8", data: str | None = "samples.npz", **recipe: str) -> Situation:
    known = replace(evidence(of=read_graph(onnx.load(model), {})), model=model)
    built = Recipe(**{"precision": "int8", **recipe})
    return replace(situation(evidence=known), recipe=built, selected=selected, data=data)


def test_what_the_graph_has_a_place_for_is_tried_beside_what_is_chosen(tmp_path: Path) -> None:
    found = proposed(PLACEMENT, of(gated(tmp_path)))
    assert [*found] == ["forms=gates=int8"]
    assert dict(found["forms=gates=int8"].recipe) == {"forms": "gates=int8", "precision": "int8"}
    assert found["forms=gates=int8"].makes_graph
    assert [*proposed(PLACEMENT, of(gated(tmp_path), forms="smoothing=off"))] == [
        "forms=gates=int8,smoothing=off"
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"precision": "fp16"},
        {"forms": "gates=int8"},
        {"selected": "fp16", "precision": "best"},
        {"data": None},
    ],
    ids=["float", "done already", "float was faster", "no data"],
)
def test_nothing_is_tried_where_it_would_change_nothing(tmp_path: Path, given: dict[str, str]) -> None:
    assert proposed(PLACEMENT, of(gated(tmp_path), **given)) == {}
