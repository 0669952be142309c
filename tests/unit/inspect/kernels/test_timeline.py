"""Busy and idle time of a device add up to the whole."""

import pytest
from hypothesis import given, strategies as st

from trtopt.inspect.kernels.timeline import gaps_before, span_of

LAUNCHES = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 50)), min_size=1, max_size=20)


@given(LAUNCHES)
def test_gaps_and_the_time_in_which_something_runs_are_the_span(launches: list[tuple[int, int]]) -> None:
    intervals = sorted((float(start), float(start + length)) for start, length in launches)
    covered = {tick for start, length in launches for tick in range(start, start + length)}
    assert sum(gaps_before(intervals)) + len(covered) == span_of(intervals)


def test_a_launch_that_overlaps_another_leaves_no_gap() -> None:
    assert gaps_before([(0.0, 4.0), (1.0, 2.0), (5.0, 6.0)]) == pytest.approx([0.0, 0.0, 1.0])
    assert (gaps_before([]), span_of([])) == ([], 0.0)
