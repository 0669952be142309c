"""Engine selection from medians, verdicts and accuracy. Pure.

The baseline is selected unless a candidate is better. A candidate that is SLOWER never is, nor one that
breaks an accuracy bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from trtopt.measure.contracts import THRESHOLD
from trtopt.measure.statistics.comparison import Comparison, Verdict


@dataclass(frozen=True)
class TimedCandidate:
    """An engine, its median latency in ms, and how it compares with the baseline's.

    `broken` are the accuracy bounds that it breaks, in words: it need not have been measured. `requested`: it
    is what the user requested. `sqnr_db` is the accuracy of its worst output.
    """

    name: str
    ms: float
    comparison: Comparison
    requested: bool = False
    broken: tuple[str, ...] = ()
    sqnr_db: float = inf


@dataclass(frozen=True)
class Selection:
    """The engine's name, and why."""

    name: str
    reason: str


def select_engine(baseline: str, candidates_timed: Sequence[TimedCandidate]) -> Selection:
    """The fastest candidate that is FASTER than the baseline; else a requested one that costs no time.

    Of those within `THRESHOLD` of the fastest it is the most accurate. Where speeds are the SAME, the
    requested one is taken, and otherwise the baseline. UNDECIDED counts as no cost only if the median is no
    larger.
    """
    usable = [one for one in candidates_timed if not one.broken]
    if faster := [one for one in usable if one.comparison.verdict is Verdict.FASTER]:
        best = _most_accurate(faster)
        return Selection(best.name, f"faster than {baseline}: {_change(best.comparison)}")
    if free := [one for one in usable if one.requested and _costs_nothing(one.comparison)]:
        best = _most_accurate(free)
        return Selection(best.name, f"not slower than {baseline}, and requested: {_change(best.comparison)}")
    return Selection(
        baseline, "; ".join(_against(one, baseline) for one in candidates_timed) or "there is nothing else"
    )


def _most_accurate(usable: Sequence[TimedCandidate]) -> TimedCandidate:
    least = min(one.ms for one in usable)
    near = [one for one in usable if one.ms <= least * (1 + THRESHOLD)]
    return max(near, key=lambda one: (one.sqnr_db, -one.ms))


def _costs_nothing(comparison: Comparison) -> bool:
    if comparison.verdict is Verdict.UNDECIDED:
        return comparison.ratio is not None and comparison.ratio.value <= 1
    return comparison.verdict is Verdict.SAME


def _against(timed: TimedCandidate, baseline: str) -> str:
    """Why a candidate was not taken."""
    if timed.broken:
        return f"{timed.name} is not accurate enough: {', '.join(timed.broken)}"
    words = {
        Verdict.SLOWER: "is slower than",
        Verdict.SAME: "is no faster than",
        Verdict.UNDECIDED: "is not shown to be faster than",
        Verdict.FASTER: "is faster than",
    }
    return f"{timed.name} {words[timed.comparison.verdict]} {baseline}: {_change(timed.comparison)}"


def _change(comparison: Comparison) -> str:
    change = f"latency {comparison.ratio.change}" if comparison.ratio is not None else "no ratio"
    return f"{change}, {comparison.verdict.value}"
