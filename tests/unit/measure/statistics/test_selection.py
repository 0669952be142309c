"""Which engine is handed out, from verdicts alone."""

from dataclasses import replace
from math import inf

import pytest

from trtopt.measure.contracts import THRESHOLD
from trtopt.measure.statistics.comparison import Comparison, Verdict, compare, decide
from trtopt.measure.statistics.selection import TimedCandidate, select_engine

FASTER, SLOWER = Verdict.FASTER, Verdict.SLOWER
SAME, UNDECIDED = Verdict.SAME, Verdict.UNDECIDED


def blocks(median: float, spread: float = 0.001) -> list[list[float]]:
    """Twenty blocks around a median, two and two by so much to either side."""
    return [[median * (1 + spread * (-1) ** (block // 2))] * 5 for block in range(20)]


def against(ms: float, spread: float = 0.001) -> Comparison:
    """A rival of that latency against a baseline of 1 ms."""
    return compare(blocks(1.0), blocks(ms, spread))


def timed(
    name: str, ms: float, *, requested: bool = False, spread: float = 0.001, broken: str = ""
) -> TimedCandidate:
    return TimedCandidate(name, ms, against(ms, spread), requested, (broken,) if broken else ())


@pytest.mark.parametrize(
    ("ms", "spread", "verdict", "requested", "best"),
    [
        (0.8, 0.001, FASTER, "int8", "int8"),
        (1.2, 0.001, SLOWER, "fp16", "fp16"),
        (1.001, 0.001, SAME, "int8", "fp16"),
        (0.98, 0.3, UNDECIDED, "int8", "fp16"),
        (1.2, 0.3, UNDECIDED, "fp16", "fp16"),
    ],
)
def test_what_was_requested_is_taken_where_it_costs_no_time_and_otherwise_only_what_is_faster(
    ms: float, spread: float, verdict: Verdict, requested: str, best: str
) -> None:
    assert against(ms, spread).verdict is verdict
    assert select_engine("fp16", [timed("int8", ms, requested=True, spread=spread)]).name == requested
    assert select_engine("fp16", [timed("int8", ms, spread=spread)]).name == best


def test_of_several_that_are_faster_the_fastest_is_taken() -> None:
    found = select_engine(
        "fp16", [timed("bf16", 0.9), timed("int8", 0.8), timed("int8.part1", 0.7), timed("x", 1.3)]
    )
    assert found.name == "int8.part1"
    assert found.reason.startswith("faster than fp16: latency -30.0%")


def test_of_those_within_the_threshold_of_the_fastest_the_most_accurate_is_taken() -> None:
    near, coarse = replace(timed("int8.b", 0.705), sqnr_db=35.0), replace(timed("int8.a", 0.7), sqnr_db=27.0)
    assert select_engine("fp16", [coarse, near, replace(timed("far", 0.72), sqnr_db=50.0)]).name == "int8.b"


def test_one_that_breaks_a_bound_is_not_taken_however_fast() -> None:
    found = select_engine(
        "fp16", [timed("int8", 0.5, requested=True, broken="cosine of 'y' is 0.9, the bound is 0.99")]
    )
    assert found.name == "fp16"
    assert found.reason == "int8 is not accurate enough: cosine of 'y' is 0.9, the bound is 0.99"
    broken = ("cosine of 'y' is 0.5, the bound is 0.99",)
    unmeasured = TimedCandidate("fp8", inf, decide(None, THRESHOLD), True, broken)
    assert select_engine("fp16", [unmeasured, timed("int8", 0.9)]).name == "int8"


def test_the_reason_for_the_baseline_tells_of_every_rival() -> None:
    reason = select_engine("fp16", [timed("int8", 1.2, requested=True), timed("fp8", 1.0)]).reason
    assert "int8 is slower than fp16: latency +20.0%" in reason
    assert "fp8 is no faster than fp16: latency +0.0%" in reason
    assert select_engine("fp32", []).reason == "there is nothing else"
