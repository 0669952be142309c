"""How values are written on the command line."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from trtopt.builder.shapes import batch_range
from trtopt.errors import UsageError
from trtopt.requests.shared import parse_batches, parse_budget, parse_lengths_of_axis, parse_range


@given(st.integers(1, 2**31 - 4097), st.integers(0, 4095), st.sampled_from(["-", "..", " - "]))
def test_a_range_is_all_sizes_from_its_first_to_its_last(low: int, more: int, dash: str) -> None:
    assert parse_batches(f"{low}{dash}{low + more}") == tuple(range(low, low + more + 1))


@given(st.integers(1, 2**31 - 1))
def test_powers_of_two_are_those_up_to_the_last(last: int) -> None:
    found = parse_batches(f"pow2:{last}")
    assert found[0] == 1
    assert found[-1] <= last < 2 * found[-1]
    assert all(other == 2 * one for one, other in pairwise(found))


def test_ranges_stand_in_lists_wherever_sizes_do() -> None:
    assert parse_batches("1-3,8,pow2:4") == (1, 2, 3, 4, 8)
    assert parse_range("1,1,4") == (1, 1, 4)
    assert parse_lengths_of_axis("seq=pow2:8") == ("seq", (1, 2, 4, 8))


@pytest.mark.parametrize(
    "text", ["8-1", "0-8", "1-", "-8", "1-2-3", "1...8", "pow2:", "pow2:0", "pow2:1-8", "1-2147483647", "a-b"]
)
def test_what_is_no_range_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(UsageError, match="--batch") as refused:
        parse_batches(text)
    assert "--batch 1-8" in refused.value.remedy


def test_all_sizes_of_a_range_are_one_profile() -> None:
    assert batch_range(parse_range("1-32")) == batch_range([1, 32])
    assert batch_range(parse_range("1-3")) == batch_range([1, 2, 3])
    with pytest.raises(UsageError, match="three batch sizes"):
        batch_range([1, 2, 4, 8])


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("30 m", 1800), ("1h 30m", 5400)]
)
def test_a_budget_is_read(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "m", "3 0m", "-5s", "0", "0s", "30d", "8000h", "1m30", "1e3s", "nan", "١٢s"]
)
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--budget"):
        parse_budget(text)
