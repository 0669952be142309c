"""When a pass has enough samples: pure, fed one query at a time."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from trtopt.measure.contracts import DURATION_S, WARMUP_S
from trtopt.measure.statistics.intervals import Interval, percentile_interval

STEADY = 0.005
"""Blocks whose medians are all within this share of the whole's are steady."""

_EARLIEST_S, _EARLIEST_SHARE = 8.0, 1 / 3
"""Noise that is longer than a run cannot be seen in it: no pass is short only because it looks steady."""

_BLOCKS = 20
_GROWTH = 1.25


@dataclass(frozen=True)
class Limits:
    """`warmup_s` before samples count, then sampling for `duration_s`.

    `min_warmups` and `min_queries` are reached whatever the time. With `stop_early` a pass ends as soon as
    it is steady, but never before it has taken 8 s and a third of its own duration.
    """

    warmup_s: float = WARMUP_S
    duration_s: float = DURATION_S
    min_warmups: int = 3
    min_queries: int = 10
    max_warmup_s: float = 5.0
    stop_early: bool = False


class StopCode(str, Enum):
    """What ended a pass."""

    STEADY = "steady"
    DURATION = "duration"


class StoppingRule:
    """Ends a pass after its duration, or earlier where it is steady.

    An interval that happens to be narrow is no sign of that: it often is while one of two modes lasts.
    Steadiness is looked at only at counts that grow by a quarter each, for a look takes time.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._earliest_s = max(_EARLIEST_S, _EARLIEST_SHARE * limits.duration_s)
        self._values = array("d")
        self._next = limits.min_queries
        self.ended_by: StopCode | None = None

    def add(self, latency_ms: float) -> None:
        """One more query has finished."""
        self._values.append(latency_ms)

    def take_back(self, count: int) -> None:
        """The last `count` queries were disturbed and do not count. A duration stays reached."""
        del self._values[len(self._values) - count :]
        if count and self.ended_by is StopCode.STEADY:
            self.ended_by = None

    def is_finished(self, elapsed_s: float) -> bool:
        """Whether the pass may end; `elapsed_s` counts from its first sample."""
        if self.ended_by is not None:
            return True
        count = len(self._values)
        if elapsed_s >= self._limits.duration_s and count >= self._limits.min_queries:
            self.ended_by = StopCode.DURATION
        elif self._limits.stop_early and elapsed_s >= self._earliest_s and count >= self._next:
            self._next = math.ceil(count * _GROWTH)
            if is_steady(np.array(self._values)):
                self.ended_by = StopCode.STEADY
        return self.ended_by is not None

    @property
    def interval(self) -> Interval | None:
        """The median's; None without any query."""
        return percentile_interval(np.array(self._values), 50.0) if self._values else None

    @property
    def reason(self) -> str:
        """For the record."""
        known = f"median {interval.text}" if (interval := self.interval) is not None else "0 queries"
        if self.ended_by is StopCode.STEADY:
            return f"steady: {_BLOCKS} blocks agree within ±{STEADY:.2%}, {known}"
        if self.ended_by is StopCode.DURATION:
            return f"sampled for {self._limits.duration_s:g} s: {known}"
        return f"not ended: {known}"


def is_steady(values: NDArray[np.float64]) -> bool:
    """Whether the medians of 20 consecutive blocks are all within `STEADY` of the whole's."""
    if len(values) < _BLOCKS:
        return False
    medians = np.array([np.median(block) for block in np.array_split(values, _BLOCKS)])
    whole = float(np.median(values))
    return bool(np.abs(medians - whole).max() <= STEADY * whole)
