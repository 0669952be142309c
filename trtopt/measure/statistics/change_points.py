"""Where a series of runs changes its level: at each new run, from the runs before it alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np
from numpy.typing import NDArray

from trtopt.measure.contracts import THRESHOLD

REFERENCE_RUNS = 20
"""The most runs that new ones are compared with: a slow drift is no change."""
LEAST_REFERENCE = 8
NEWEST_RUNS = 8
"""The most runs that are compared with those before them."""
_NEW_RUNS = range(2, NEWEST_RUNS + 1)
_LEAST_RANK = 2.7
"""In standard deviations of the rank sum; `benchmarks/history` has the false alarms that it leads to."""
_QUANTILE = 1.96
"""Of the normal distribution, for intervals of 95 %."""

Logs = NDArray[np.float64]


@dataclass(frozen=True)
class ChangePoint:
    """From run `index` on, figures in `column` are `ratio` times those before, with an interval of 95 %."""

    index: int
    column: int
    ratio: float
    low: float
    high: float


def change_points(
    columns: Sequence[Sequence[float]], threshold: float = THRESHOLD
) -> tuple[ChangePoint, ...]:
    """The changes of a series, in the order of its runs, each with the column that shows it most clearly.

    After each run the newest two to eight are compared with up to 20 before them, back to the last change, by
    the rank sum of Wilcoxon, Mann and Whitney in each column: it needs no model of the noise, and neither
    single runs far off nor two modes make a change. Medians must differ by `threshold` as well.
    """
    logs = [np.log(np.asarray(column, np.float64)) for column in columns]
    found: list[tuple[int, int]] = []
    start = 0
    for end in range(1, len(logs[0]) + 1):
        splits = [
            (*split, column)
            for column, values in enumerate(logs)
            if (split := _split(values[start:end], threshold))
        ]
        if splits:
            _, length, column = max(splits)
            start += length
            found.append((start, column))
    ends = [0, *(at for at, _ in found), len(logs[0])]
    return tuple(
        _change(logs[column], column, *ends[place : place + 3]) for place, (_, column) in enumerate(found)
    )


def _split(logs: Logs, threshold: float) -> tuple[float, int] | None:
    """How clear a change among the newest runs is, and its place; None: there is none.

    The place is the one with the least deviations from the medians of both sides: ranks alone would count a
    run with the new ones for being the highest of the old.
    """
    clarity = 0.0
    for count in _NEW_RUNS:
        before, after = logs[-count - REFERENCE_RUNS : -count], logs[-count:]
        if len(before) < LEAST_REFERENCE:
            break
        gaps = np.subtract.outer(after, before)
        if abs(exp(float(np.median(gaps))) - 1) >= threshold:
            rank = abs(np.count_nonzero(gaps > 0) - np.count_nonzero(gaps < 0)) / 2
            clarity = max(clarity, rank / sqrt(gaps.size * (len(before) + count + 1) / 12))
    if clarity < _LEAST_RANK:
        return None
    newest = logs[-REFERENCE_RUNS - _NEW_RUNS.stop :]
    count = min(_NEW_RUNS, key=lambda count: _deviation(newest[:-count]) + _deviation(newest[-count:]))
    return clarity, len(logs) - count


def _deviation(logs: Logs) -> float:
    return float(np.abs(logs - np.median(logs)).sum())


def _change(logs: Logs, column: int, start: int, at: int, end: int) -> ChangePoint:
    return ChangePoint(at, column, *ratio_of(logs[start:at], logs[at:end][:REFERENCE_RUNS]))


def ratio_of(before: Logs, after: Logs) -> tuple[float, float, float]:
    """Of two levels, by Hodges and Lehmann, and Moses' interval of 95 %.

    From the logarithms of their runs; of those before from the newest 20.
    """
    before = before[-REFERENCE_RUNS:]
    gaps = np.sort(np.subtract.outer(after, before), axis=None)
    half = _QUANTILE * sqrt(gaps.size * (len(before) + len(after) + 1) / 12)
    left_out = max(0, int(gaps.size / 2 - half))
    ratio, low, high = np.exp([np.median(gaps), gaps[left_out], gaps[-1 - left_out]]).tolist()
    return ratio, low, high
