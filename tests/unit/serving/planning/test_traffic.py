"""When requests arrive."""

import numpy as np
import pytest

from trtopt.errors import DataError, UsageError
from trtopt.serving.planning.traffic import (
    Process,
    Recorded,
    arrivals_at,
    lengths_of,
    parse_process,
    parse_recorded,
)

RECORDED = Recorded((0.0, 1.0, 1.5, 4.0), (10, 20, 30, 40))


@pytest.mark.parametrize("text", ["poisson", "constant"])
def test_processes_are_named(text: str) -> None:
    assert parse_process(text) == text


@pytest.mark.parametrize("text", ["weekly", "poisson:2", "bursty:2:0.1"])
def test_other_processes_are_refused_with_the_reason(text: str) -> None:
    with pytest.raises(UsageError, match="neither a kind of arrivals nor a file"):
        parse_process(text)


def test_recorded_arrivals_count_from_the_first() -> None:
    assert parse_recorded("# seconds\n7.5\n\n8  # a comment\n8\n", "log") == Recorded((0.0, 0.5, 0.5))
    assert parse_recorded("0,128\n0.5 384\n", "log") == Recorded((0.0, 0.5), (128, 384))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0\nsoon\n", "log:2: 'soon' is not a time"),
        ("0\n1,2.5\n", "log:2: '1,2.5' is not a time"),
        ("0\n2\n1\n", "log:3: '1' goes back"),
        ("0,1\n1\n", "log:2: '1' has no length, unlike those before it"),
        ("0\n1,1\n", "log:2: '1,1' has a length, unlike those before it"),
        ("0,1\n1,0\n", "log:2: '1,0' has the length 0"),
        ("0\n1,2,3\n", "log:2: '1,2,3' has 3 fields"),
        ("0\nnan\n", "log:2: 'nan' has no time that is a number\n  → write each time in seconds"),
        ("inf\n1\n", "log:1: 'inf' has no time that is a number"),
        ("", "log: 0 arrivals are too few for a rate"),
        ("3\n3\n", "log: 2 arrivals are too few for a rate"),
    ],
)
def test_a_record_that_is_none_is_refused_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        parse_recorded(text, "log")


@pytest.mark.parametrize("process", ["poisson", "constant", RECORDED])
def test_every_process_keeps_the_rate_and_begins_at_zero(process: Process) -> None:
    """Of 200,000 arrivals."""
    at_s = arrivals_at(process, 500.0, 200_000, seed=3)
    assert at_s[0] == 0
    assert np.all(np.diff(at_s) >= 0)
    assert len(at_s) / at_s[-1] == pytest.approx(500, rel=0.01)


def test_a_record_is_stretched_to_the_rate_and_repeated() -> None:
    assert RECORDED.rate == 0.75
    once = arrivals_at(RECORDED, 1.5, 4, seed=9)
    assert once == pytest.approx([0.0, 0.5, 0.75, 2.0])
    twice = arrivals_at(RECORDED, 0.75, 8, seed=9)
    assert np.diff(twice) == pytest.approx([1.0, 0.5, 2.5, 1 / 0.75, 1.0, 0.5, 2.5])


def test_lengths_stay_with_their_arrivals_however_the_record_is_begun() -> None:
    part, lengths = (arrivals_at(RECORDED, 0.75, 3, seed=1), lengths_of(RECORDED, {}, 3, seed=1))
    gap_before = {10: 1 / 0.75, 20: 1.0, 30: 0.5, 40: 2.5}
    assert np.diff(part) == pytest.approx([gap_before[length] for length in lengths[1:].tolist()])


def test_lengths_are_drawn_by_their_shares() -> None:
    drawn = lengths_of("poisson", {384: 1.0, 128: 3.0}, 10_000, seed=0)
    assert set(drawn.tolist()) == {128, 384}
    assert np.mean(drawn == 128) == pytest.approx(0.75, abs=0.02)
