"""Precisions for the whole model: offered where they are missing, valued by the roofline."""

from __future__ import annotations

import pytest

from tests.support.inspected import graph, node, profiled
from tests.support.tuning import evidence, gain, proposed, situation
from trtopt.recipe import Recipe
from trtopt.records import DevicePeaks, LayerCost, Peak
from trtopt.workflows.tune.candidates import Situation
from trtopt.workflows.tune.graph_kinds import PRECISION

PEAKS = DevicePeaks(
    device="A GPU",
    bandwidth=Peak(value=1e12, source=""),
    flops={name: Peak(value=rate, source="") for name, rate in (("float32", 1e12), ("float16", 4e12))},
)
HALF = graph(node("Relu", "x", "y"), inputs={"x": (8, 4)}, dtype="float16")
QUANTISED = graph(
    node("QuantizeLinear", "x s", "q"), node("DequantizeLinear", "q s", "y"), inputs={"x": (8, 4), "s": ()}
)


def test_int8_is_offered_with_samples_alone() -> None:
    assert [*proposed(PRECISION, situation())] == ["precision=fp16", "precision=bf16"]
    assert "precision=best" in proposed(PRECISION, situation(data="samples.npz"))


@pytest.mark.parametrize(
    "given",
    [
        situation(data="s.npz", recipe=Recipe(precision="best"), selected="int8"),
        situation(data="s.npz", evidence=evidence(of=QUANTISED)),
        situation(data="s.npz", evidence=evidence(of=HALF)),
    ],
)
def test_a_graph_that_has_a_precision_keeps_it(given: object) -> None:
    assert proposed(PRECISION, given) == {}  # type: ignore[arg-type]


def test_int8_is_still_offered_once_the_graph_was_cast_to_fp16() -> None:
    cast = situation(data="s.npz", recipe=Recipe(precision="fp16"), evidence=evidence(of=HALF))
    assert [*proposed(PRECISION, cast)] == ["precision=best"]


def test_selecting_among_precisions_costs_the_measurement_of_each() -> None:
    found = proposed(PRECISION, situation("onnxruntime", "1", data="samples.npz"))
    assert found["precision=best"].measurements == 1 + len(("fp32", "fp16", "int8"))
    assert found["precision=fp16"].measurements == 1


@pytest.mark.parametrize(
    ("given", "builds"),
    [
        (situation("tensorrt", "8.6.0", data="s.npz"), 2 + 1),
        (situation("tensorrt", "8.6.0", data="s.npz", recipe=Recipe(selection_budget=5)), 2 + 2),
        (situation(data="s.npz"), 4 + 2),
        (situation("onnxruntime", "1", data="s.npz"), 3 + 1),
    ],
)
def test_selecting_among_precisions_costs_a_build_of_each_and_more_in_int8(
    given: Situation, builds: int
) -> None:
    assert proposed(PRECISION, given)["precision=best"].builds == builds


def test_what_computes_gains_by_rates_and_what_moves_by_bytes() -> None:
    cost = LayerCost(flops=1, bytes_moved=1, floor_ms=1.0, bound="compute")
    computing = profiled("1", "a", 1.0, dtype="float32", cost=cost, weights_count=1)
    moving = profiled("2", "b", 1.0, dtype="float32", cost=LayerCost(flops=1, bytes_moved=1, bound="memory"))
    already = profiled("3", "c", 1.0, dtype="float16", cost=cost)
    for layer, saved in ((computing, 0.75), (moving, 0.5), (already, 0.0)):
        given = situation(evidence=evidence(layer, peaks=PEAKS))
        assert gain(proposed(PRECISION, given)["precision=fp16"]) == pytest.approx(0.7 * saved)


def test_16_bits_promise_little_on_a_processor() -> None:
    prior = proposed(PRECISION, situation("onnxruntime", "1"))["precision=fp16"].prior
    assert prior is not None
    assert prior.risk > prior.probability
