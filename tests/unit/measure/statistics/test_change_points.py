"""Changes of level in a series of runs: found soon, and not where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from trtopt.measure.statistics.change_points import change_points

LEVELS = np.random.default_rng(1).normal(0.0, 0.003, 60)


def series(effect: float, at: int = 30, runs: int = 60) -> list[float]:
    return np.exp(LEVELS[:runs] + np.where(np.arange(runs) >= at, np.log(effect), 0.0)).tolist()


@pytest.mark.parametrize("effect", [1.03, 0.97, 2.0])
def test_a_change_is_found_within_five_runs_and_does_not_move_with_later_ones(effect: float) -> None:
    (early,) = change_points([series(effect, runs=35)])
    (late,) = change_points([series(effect)])
    assert early.index == late.index == 30
    assert late.low <= effect <= late.high
    assert abs(late.ratio / effect - 1) < 0.005


def test_a_second_change_is_told_against_the_first() -> None:
    values = np.asarray(series(1.1)) * np.where(np.arange(60) >= 45, 1 / 1.1, 1.0)
    first, second = change_points([values.tolist()])
    assert (first.index, second.index) == (30, 45)
    assert first.ratio == pytest.approx(1.1, rel=0.01)
    assert second.ratio == pytest.approx(1 / 1.1, rel=0.01)


def test_a_change_that_only_one_column_has_is_told_of_that() -> None:
    (found,) = change_points([series(1.0), series(1.05)])
    assert (found.index, found.column) == (30, 1)


@pytest.mark.parametrize("every", [5, 7])
def test_single_runs_far_off_are_no_change(every: int) -> None:
    values = np.asarray(series(1.0)) * np.where(np.arange(60) % every == every - 1, 1.5, 1.0)
    assert change_points([values.tolist()]) == ()


def test_what_is_below_the_threshold_is_no_change() -> None:
    assert change_points([series(1.005)]) == ()
    assert change_points([series(1.005)], threshold=0.002) != ()


@given(st.lists(st.floats(0.001, 1000.0), max_size=9))
def test_few_runs_show_no_change(values: list[float]) -> None:
    assert change_points([values]) == ()


@given(st.lists(st.floats(0.001, 1000.0), min_size=1, max_size=60))
def test_a_change_lies_within_the_series_and_its_ratio_within_its_interval(values: list[float]) -> None:
    for found in change_points([values]):
        assert 0 < found.index < len(values)
        assert found.low <= found.ratio <= found.high
