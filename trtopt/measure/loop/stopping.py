"""When a pass has enough samples: pure, fed one query at a time."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from enum import Enum

import numpy as np

from trtopt.measure.contracts import DURATION_S, WARMUP_S
from trtopt.measure.statistics.intervals import MedianInterval, median_interval

TARGET = 0.005
"""Default relative half-width of the median's 95 % interval."""

_FIRST_LOOK = 100
"""A luckily narrow interval is commonest among few values, and 100 are what a p99 needs."""
_GROWTH = 1.25
_STALL_SPAN = 4.0
_STALL_RATIO = 0.8
_STALL_FROM = 2000
"""Intervals of fewer values may stay wide only because their autocorrelation is not resolved yet."""


@dataclass(frozen=True)
class Limits:
    """`warmup_s` before samples count, then sampling for `duration_s` at most.

    `min_warmups` and `min_queries` are reached whatever the time. A pass that need not run for its whole
    time runs for `min_duration_s` at least: thousands of queries in some milliseconds agree with each other
    but say nothing of the next second. `target` is the relative half-width that is precise enough.
    """

    warmup_s: float = WARMUP_S
    duration_s: float = DURATION_S
    min_warmups: int = 3
    min_queries: int = 10
    max_warmup_s: float = 5.0
    min_duration_s: float = 0.5
    target: float = TARGET


class StopCode(str, Enum):
    """What ended a pass."""

    PRECISE = "precise"
    STALLED = "stalled"
    TIME_LIMIT = "time limit"


class StoppingRule:
    """Ends a pass when its median is known well enough, when more samples stop helping, or at a time limit.

    Cheap enough for every query of a fast engine: `add` appends to an array. The interval is computed only at
    counts that grow by a quarter each, at most 31 times in 90,000 queries, in one or two milliseconds. Few
    evaluations also keep the interval honest: each is one more chance to stop at a narrow one by luck.
    """

    def __init__(
        self,
        target: float = TARGET,
        *,
        min_count: int = 10,
        min_s: float = 0.5,
        max_s: float = 3.0,
    ) -> None:
        self._target = target
        self._min_count, self._min_s, self._max_s = min_count, min(min_s, max_s), max_s
        self._values = array("d")
        self._first = self._next = max(min_count, _FIRST_LOOK)
        self._looks: list[tuple[int, float]] = []  # counts and relative half-widths
        self.interval: MedianInterval | None = None
        self.ended_by: StopCode | None = None

    def add(self, latency_ms: float) -> None:
        """One more query has finished."""
        self._values.append(latency_ms)

    def take_back(self, count: int) -> None:
        """The last `count` queries were disturbed and do not count. A time limit stays reached."""
        if not count:
            return
        del self._values[len(self._values) - count :]
        left = len(self._values)
        self._looks = [look for look in self._looks if look[0] <= left]
        self._next = max(self._first, math.ceil((self._looks[-1][0] if self._looks else 0) * _GROWTH))
        self.interval = median_interval(np.array(self._values))
        if self.ended_by is not StopCode.TIME_LIMIT:
            self.ended_by = None

    def is_finished(self, elapsed_s: float) -> bool:
        """Whether the pass may end; `elapsed_s` counts from its first sample."""
        if self.ended_by is not None:
            return True
        count = len(self._values)
        if elapsed_s >= self._max_s and count >= self._min_count:
            self._look()
            if self.ended_by is None:
                self.ended_by = StopCode.TIME_LIMIT
        elif count >= self._next and elapsed_s >= self._min_s:
            self._next = math.ceil(count * _GROWTH)
            self._look()
        return self.ended_by is not None

    def _look(self) -> None:
        self.interval = median_interval(np.array(self._values))
        if self.interval is None:
            return
        if self.interval.relative_half_width <= self._target:
            self.ended_by = StopCode.PRECISE if self.interval.resolved else None
            return
        self._looks.append((self.interval.count, self.interval.relative_half_width))
        if has_stalled(self._looks) and has_stalled(self._looks[:-1]):
            self.ended_by = StopCode.STALLED

    @property
    def reason(self) -> str:
        """For the record."""
        count = len(self._values)
        if self.interval is None or not self.interval.resolved:
            known = f"{count} queries are too few, or too correlated, to estimate its precision"
        else:
            known = f"its median is known to ±{self.interval.relative_half_width:.2%} from {count} queries"
        if self.ended_by is None:
            return f"not ended: {known}"
        if self.ended_by is StopCode.PRECISE:
            return f"precise: {known}, the target is ±{self._target:.2%}"
        if self.ended_by is StopCode.STALLED:
            assert self.interval is not None
            noise = f"±{self.interval.relative_half_width:.2%} after {count} queries"
            return f"noise has stabilised at {noise}, above the target of ±{self._target:.2%}"
        return f"time limit of {self._max_s:g} s: {known}, the target is ±{self._target:.2%}"


def has_stalled(looks: list[tuple[int, float]]) -> bool:
    """Whether the last of `looks` (count, relative half-width) is hardly narrower than at a quarter of it.

    Of a steady run four times the samples halve the interval. If they leave more than 0.8 of it, the run
    wanders (clocks, temperature, another process), and waiting does not help. 0.8 is two standard errors
    above a half: each half-width, by 20 batches, is known to about 1/√(2·19) = 16 %.
    """
    if not looks:
        return False
    count, half_width = looks[-1]
    earlier = [width for before, width in looks if _STALL_FROM <= before <= count / _STALL_SPAN]
    return bool(earlier) and half_width > _STALL_RATIO * earlier[-1]
