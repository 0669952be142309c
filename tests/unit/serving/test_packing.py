"""Sequences packed into rows, and what that is estimated to save."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given, strategies as st

from tests.support.engines import engine
from trtopt.errors import UsageError
from trtopt.records import BatchPolicy
from trtopt.serving.packing import MOST, first_fit_decreasing, packing_estimate
from trtopt.serving.planning.prediction import Demand
from trtopt.serving.planning.setups import Fleet, Setup
from trtopt.serving.planning.traffic import Recorded

ROW = 40


def sums(lengths: list[int], rows: list[list[int]]) -> list[int]:
    return [sum(lengths[index] for index in row) for row in rows]


def fewest(lengths: list[int], row: int, most: int) -> int:
    """The least number of rows there can be: the first sequence with every choice of others, and so on."""
    if not lengths:
        return 0
    first, others = lengths[0], lengths[1:]
    best = len(lengths)
    for count in range(min(most, len(lengths))):
        for chosen in combinations(range(len(others)), count):
            if first + sum(others[index] for index in chosen) <= row:
                left = [length for index, length in enumerate(others) if index not in chosen]
                best = min(best, 1 + fewest(left, row, most))
    return best


# ── packing ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ([], []),
        ([40], [[0]]),
        ([10, 30, 20, 20], [[1, 0], [2, 3]]),
        ([10, 10, 10, 10], [[0, 1, 2], [3]]),  # a fourth one would fit, but three is the most
        ([25, 16, 15, 24], [[0, 2], [3, 1]]),
    ],
)
def test_the_longest_goes_first_into_the_first_row_with_room(
    lengths: list[int], rows: list[list[int]]
) -> None:
    assert first_fit_decreasing(lengths, ROW) == rows


@given(st.lists(st.integers(1, ROW), max_size=60), st.integers(1, 5))
def test_every_sequence_is_in_one_row_that_holds_it_and_in_the_first_with_room(
    lengths: list[int], most: int
) -> None:
    rows = first_fit_decreasing(lengths, ROW, most)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    filled = sums(lengths, rows)
    assert all(0 < tokens <= ROW for tokens in filled)
    assert all(1 <= len(row) <= most for row in rows)
    for place, row in enumerate(rows):
        for index in row:
            for earlier in range(place):
                assert filled[earlier] + lengths[index] > ROW or len(rows[earlier]) == most
    assert len(rows) >= max(math.ceil(sum(lengths) / ROW), math.ceil(len(lengths) / most))


@given(st.lists(st.integers(1, ROW), min_size=1, max_size=7))
def test_without_a_bound_on_a_row_there_are_at_most_11_9ths_of_the_fewest_rows_and_6_9ths(
    lengths: list[int],
) -> None:
    """Dósa 2007, "The tight bound of first fit decreasing bin-packing algorithm"."""
    rows = first_fit_decreasing(lengths, ROW, most=len(lengths))
    assert len(rows) <= 11 / 9 * fewest(lengths, ROW, len(lengths)) + 6 / 9


@pytest.mark.parametrize("length", [0, -1, ROW + 1])
def test_a_sequence_that_fits_no_row_is_refused(length: int) -> None:
    with pytest.raises(UsageError, match=f"length {length} fits no row of {ROW}"):
        first_fit_decreasing([1, length], ROW)


# ── the estimate ────────────────────────────────────────────────────────────────────────────────────────


def setup(*lengths_ms: tuple[int, float], max_batch: int = 2, workers: int = 1) -> Setup:
    """Engines for a batch of 2, one for each length, with the time of a batch."""
    fleet = Fleet([engine(2, ms, length=length, among_two=ms) for length, ms in lengths_ms])
    return Setup(fleet, workers, BatchPolicy(max_batch=max_batch, max_delay_ms=0.0))


def demand(shares: dict[int, float]) -> Demand:
    return Demand("poisson", 100.0, shares)


def test_three_short_sequences_share_a_row() -> None:
    found = packing_estimate(setup((300, 6.0)), demand({100: 1.0}))
    assert found is not None
    assert (found.row, found.most, found.window, found.requests_per_row) == (300, MOST, 6, 3.0)
    assert found.padding_before == pytest.approx(2 / 3)
    assert found.padding_after == pytest.approx(0.0)
    assert found.capacity_before == pytest.approx(2 / 6e-3)  # two rows in 6 ms
    assert found.capacity_after == pytest.approx(6 / 6e-3)


def test_the_row_that_serves_most_is_reported_and_longer_sequences_stay_padded() -> None:
    """Rows of 100 take two of 50; those of 300 three, but take five times as long."""
    found = packing_estimate(setup((100, 2.0), (300, 10.0)), demand({50: 0.5, 290: 0.5}))
    assert found is not None
    assert (found.row, found.requests_per_row) == (100, pytest.approx(2.0, rel=1e-3))
    assert found.padding_before == pytest.approx(1 - 340 / 400, abs=0.005)
    assert found.padding_after == pytest.approx(1 - 340 / 350, abs=0.005)
    assert found.capacity_after / found.capacity_before == pytest.approx(6 / 5.5, rel=0.01)


def test_two_workers_have_twice_the_capacity() -> None:
    one, two = (packing_estimate(setup((300, 6.0), workers=count), demand({100: 1.0})) for count in (1, 2))
    assert one is not None
    assert two is not None
    assert two.capacity_after == pytest.approx(2 * one.capacity_after)


def test_where_no_two_sequences_fit_into_a_row_there_is_nothing_to_tell() -> None:
    assert packing_estimate(setup((300, 6.0)), demand({200: 0.9, 300: 0.1})) is None


def test_recorded_lengths_are_packed_as_they_came() -> None:
    at_s = tuple(float(second) for second in range(4))
    recorded = Demand(Recorded(at_s, (200, 100, 200, 100)), 1.0, {})
    found = packing_estimate(setup((300, 6.0)), recorded)
    assert found is not None
    assert found.requests_per_row == 2.0
    assert found.padding_after == pytest.approx(0.0)
