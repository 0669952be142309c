"""What serving adds, made of what was seen in a rehearsal."""

from __future__ import annotations

import numpy as np
import pytest

from trtopt.pipeline.serving_costs import evenly, scattered
from trtopt.plan.service import Curve, Service
from trtopt.records import ServingCost
from trtopt.runtime.rehearsal import Rehearsed

ENGINE = Service([Curve(1, 1, {1: {1: (1.0,)}, 2: {1: (1.5,)}}), Curve(8, 8, {1: {8: (2.0, 4.0)}})])
"""1 ms for one request, 1.5 beside another batch; 3 ms for up to eight."""


def rehearsed(*batches: tuple[int, int, float]) -> Rehearsed:
    return Rehearsed(batches=list(batches), wake_ms=[0.3, 0.1], late_ms=[])


def test_values_stand_for_equal_parts_and_keep_the_mean() -> None:
    values = np.random.default_rng(0).lognormal(size=10_001)
    few = evenly(values.tolist())
    assert len(few) == 200
    assert list(few) == sorted(few)
    assert np.mean(few) == pytest.approx(values.mean(), rel=1e-3)
    assert evenly([3.0, 1.0, 2.0]) == (1.0, 2.0, 3.0)
    assert evenly([]) == ()


def test_one_outlier_is_one_of_many() -> None:
    few = evenly([0.0] * 9_999 + [50.0])
    assert np.quantile(few, 0.99) == 0
    assert few[-1] == pytest.approx(50 / 50)


def test_what_batches_take_longer_on_average_is_added_to_each_and_the_rest_scatters_around_it() -> None:
    costs = {1: ServingCost(batch_ms=0.5, request_ms=0.25)}
    (cost,) = scattered(costs, ENGINE, {1: rehearsed((1, 1, 2.0), (1, 1, 2.5), (8, 1, 6.0))}).values()
    # beyond 1 + 0.75 and 3 + 2.5: 0.25, 0.75 and 0.5
    assert (cost.batch_ms, cost.request_ms) == pytest.approx((1.0, 0.25))
    assert cost.jitter_ms == pytest.approx((-0.25, 0, 0.25))
    assert cost.wake_ms == (0.1, 0.3)


def test_nothing_is_added_that_would_be_less_than_nothing() -> None:
    (cost,) = scattered({1: ServingCost(batch_ms=0.5)}, ENGINE, {1: rehearsed((1, 1, 0.5))}).values()
    assert cost.batch_ms == 0
    assert cost.jitter_ms == pytest.approx((-0.5,))


def test_a_batch_is_held_against_what_as_many_at_a_time_cost() -> None:
    costs = {1: ServingCost(batch_ms=0.1), 2: ServingCost(batch_ms=0.7)}
    seen = rehearsed((1, 1, 1.1), (1, 2, 2.2))
    assert scattered(costs, ENGINE, {2: seen})[2].jitter_ms == pytest.approx((0, 0))
