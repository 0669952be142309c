import math
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from trtopt.measure.analysis.sweep_refinement import FINEST, NEIGHBOURS, next_size, with_neighbours

SIZES = st.lists(st.integers(1, 4096), min_size=1, max_size=8, unique=True)


# ── neighbours ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sizes", "kinds", "found"),
    [
        ([20], (), (20,)),
        ([20], ("pow2",), (16, 20, 32)),
        ([20], ("8",), (16, 20, 24)),
        ([20], ("32",), (20, 32)),
        ([24], ("pow2", "8", "32"), (16, 24, 32)),
        ([1], ("pow2", "8", "32"), (1, 8, 32)),
        ([32, 100], ("32",), (32, 96, 100, 128)),
    ],
)
def test_neighbours_are_the_nearest_below_and_above(
    sizes: list[int], kinds: tuple[str, ...], found: tuple[int, ...]
) -> None:
    assert with_neighbours(sizes, kinds) == found


@given(SIZES, st.sets(st.sampled_from(NEIGHBOURS)))
def test_neighbours_have_no_neighbours_of_their_own_kind(sizes: list[int], kinds: set[str]) -> None:
    found = with_neighbours(sizes, kinds)
    assert set(sizes) <= set(found)
    assert min(found) >= 1
    for kind in kinds:
        once = with_neighbours(sizes, {kind})
        assert with_neighbours(once, {kind}) == once


# ── refining ────────────────────────────────────────────────────────────────────────────────────────────


def refined(curve: Callable[[int], float], sizes: list[int]) -> list[int]:
    """The sizes that are asked for one after the other."""
    rates = {size: curve(size) for size in sizes}
    asked = []
    while (size := next_size(rates)) is not None:
        assert size not in rates
        assert min(rates) < size < max(rates)
        asked.append(size)
        rates[size] = curve(size)
    return asked


def test_a_flat_curve_is_not_refined() -> None:
    assert refined(lambda size: 1000.0 + size / 10, [1, 8, 32, 128]) == []


def test_a_straight_rise_is_looked_at_once_if_its_ends_are_all_there_is() -> None:
    assert refined(lambda size: 10.0 * size, [1, 64]) == [8]
    assert refined(lambda size: 10.0 * size**0.5, [1, 2, 4, 8, 16, 32, 64]) == []


def test_a_curve_is_refined_where_it_bends_and_not_where_it_is_flat() -> None:
    def curve(size: int) -> float:
        return 100.0 * min(size, 24)

    assert refined(curve, [1, 2, 4, 8, 16, 32, 64, 128]) == [11, 23, 19]


def test_one_size_and_none_are_left_alone() -> None:
    assert next_size({}) is None
    assert next_size({8: 100.0}) is None


def test_a_size_that_gave_nothing_is_not_requested_again() -> None:
    rates = {1: 10.0, 64: 640.0}
    assert next_size(rates) == 8
    assert next_size(rates, tried={8}) is None


@given(st.dictionaries(st.integers(1, 1024), st.floats(0.01, 1e6), min_size=2, max_size=10))
def test_refining_ends_and_never_comes_closer_than_it_should(rates: dict[int, float]) -> None:
    first = set(rates)
    while (size := next_size(rates)) is not None:
        below = max(there for there in rates if there < size)
        above = min(there for there in rates if there > size)
        assert above >= FINEST * below
        rates[size] = math.sqrt(rates[below] * rates[above]) * (1 + (size % 7) / 10)
    span = math.log(max(rates) / min(rates)) / math.log(math.sqrt(FINEST))
    assert len(rates) - len(first) <= 2 * span + 2 * len(first)
