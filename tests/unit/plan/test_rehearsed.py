"""How far rehearsals were from their simulations."""

from __future__ import annotations

import numpy as np
import pytest

from trtopt.plan.rehearsed import Rehearsal, beyond

COUNT = 5_000


def steady(took_ms: np.ndarray) -> Rehearsal:
    """Of which simulations say 1 ms for all."""
    return Rehearsal(took_ms, [np.ones(len(took_ms))] * 3)


def factors(*took_ms: np.ndarray, p: float = 99.0) -> float:
    (told,) = beyond([steady(one) for one in took_ms], [p])
    return told.factor


def stalled(*starts: int) -> np.ndarray:
    """1.5 ms each, but for a hundred requests from each of these on, a tenth of a stretch."""
    took_ms = np.full(COUNT, 1.5)
    for start in starts:
        took_ms[start : start + 100] = 400.0
    return took_ms


def test_a_rehearsal_is_as_far_off_as_its_stretches_on_average() -> None:
    (told,) = beyond([steady(np.repeat([1.1, 1.2, 1.3, 1.4, 1.5], COUNT // 5))], [50.0])
    assert (told.p, told.stretches) == (50.0, 5)
    assert told.factor == pytest.approx(1.3)
    # Winsorised: 1.2, 1.2, 1.3, 1.4, 1.4, over 1 - 2/5
    assert told.spread * told.factor == pytest.approx(0.1 / 0.6)


def test_a_stall_in_one_stretch_is_not_told_of_the_setup() -> None:
    assert factors(stalled(0)) == pytest.approx(1.5)
    assert factors(stalled(0), stalled()) == pytest.approx(1.5)


def test_a_stall_that_comes_again_is() -> None:
    assert factors(stalled(0, 3_000)) > 100
    assert factors(stalled(0), stalled(4_000)) > 30


def test_two_rehearsals_that_differ_are_less_sure_than_two_that_agree() -> None:
    unlike = beyond([steady(np.full(COUNT, 1.0)), steady(np.full(COUNT, 1.4))], [50.0])
    alike = beyond([steady(np.full(COUNT, 1.2))] * 2, [50.0])
    assert (unlike[0].factor, alike[0].factor) == pytest.approx((1.2, 1.2))
    # Ten values, five of either kind
    assert unlike[0].spread == pytest.approx(0.2 * np.sqrt(10 / 9) / 0.8 / 1.2)
    assert (alike[0].spread, alike[0].stretches) == (pytest.approx(0.0), 10)


def test_what_simulations_scatter_as_well_is_no_spread_of_the_machine() -> None:
    """Both by a hundredth at the median, so that what is beyond chance is far below that."""

    def run(seed: int) -> np.ndarray:
        each = np.repeat(1 + 0.01 * np.random.default_rng(seed).standard_normal(5), COUNT // 5)
        return np.asarray(each)

    simulated = [run(seed) for seed in range(200)]
    told = [beyond([Rehearsal(run(seed), simulated)], [50.0])[0].spread for seed in range(300, 400)]
    assert np.median(told) < 0.005
    off = np.repeat([0.9, 0.95, 1.0, 1.05, 1.1], COUNT // 5)
    (apart,) = beyond([Rehearsal(off, simulated)], [50.0])
    assert apart.spread == pytest.approx(0.05 / 0.6, rel=0.05)


def test_a_percentile_needs_ten_times_its_requests_in_each_stretch_and_its_own_at_all() -> None:
    told = beyond([steady(np.ones(2_500)), steady(np.ones(50))], [50.0, 99.0, 99.9, 99.99])
    assert [(one.p, one.stretches) for one in told] == [(50.0, 10), (99.0, 2), (99.9, 1)]


def test_requests_without_an_answer_are_a_thousand_times_late() -> None:
    assert factors(np.full(COUNT, np.inf)) == 1000.0


def test_stretches_that_a_simulation_cannot_serve_tell_nothing() -> None:
    simulated = np.ones(COUNT)
    simulated[:1000] = np.inf
    (told,) = beyond([Rehearsal(np.full(COUNT, 2.0), [simulated] * 3)], [99.0])
    assert (told.factor, told.stretches) == (2.0, 4)
    assert beyond([Rehearsal(np.full(COUNT, 2.0), [np.full(COUNT, np.inf)] * 3)], [99.0]) == ()
