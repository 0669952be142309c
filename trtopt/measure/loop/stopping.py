"""When a pass has warmed up, and when it has enough samples: pure, fed one query at a time."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trtopt.measure.contracts import DURATION_S, WARMUP_S
from trtopt.measure.statistics.intervals import Interval, percentile_interval

WINDOW = 20
"""So many last values are looked at, in two halves."""

TOLERANCE = 0.01
"""Halves whose medians differ by no more than this share agree: compare's practical threshold."""

_MAD_TO_SIGMA = 1.4826
_MEDIAN_EFFICIENCY = math.pi / 2
"""A median's variance is π/2 times a mean's, for normal values."""
_NORMAL_975 = 1.960


class WarmUp:
    """Ends once a time and a count have been reached and the last values have settled, or at a time limit.

    Settled: the two halves of the last 20 values agree, see `halves_agree`. They are looked at every ten
    values, when one half is new, so that no value gets many chances and the loop is not slowed.
    """

    def __init__(self, min_s: float = 0.2, min_count: int = WINDOW, max_s: float = 5.0) -> None:
        self._min_s, self._max_s = min_s, max(min_s, max_s)
        self._min_count = min_count
        self._last: deque[float] = deque(maxlen=WINDOW)
        self._count = 0
        self._next = max(min_count, WINDOW)
        self.ended_by: Literal["settled", "time limit"] | None = None

    def add(self, latency_ms: float) -> None:
        """One more query has finished."""
        self._last.append(latency_ms)
        self._count += 1

    def is_finished(self, elapsed_s: float) -> bool:
        """Whether sampling may begin; `elapsed_s` counts from the pass's start."""
        if self.ended_by is not None:
            return True
        if elapsed_s < self._min_s:
            return False
        if self._count >= self._next:
            self._next = self._count + WINDOW // 2
            if halves_agree(list(self._last)):
                self.ended_by = "settled"
                return True
        if elapsed_s >= self._max_s and self._count >= self._min_count:
            self.ended_by = "time limit"
        return self.ended_by is not None

    @property
    def reason(self) -> str:
        """For the record, once it has ended."""
        if self.ended_by == "settled":
            return f"settled after {self._count} queries: the halves of the last {WINDOW} agree"
        limit = f"time limit of {self._max_s:g} s"
        if self._count < WINDOW:
            return f"{limit}: {self._count} queries are too few to tell whether it settled"
        return f"{limit}: the halves of the last {WINDOW} of {self._count} queries disagree"


def halves_agree(values: Sequence[float], tolerance: float = TOLERANCE) -> bool:
    """Whether the medians of a run's two halves differ by no more than the tolerance or their own noise.

    Noise: 1.96 standard errors of a difference of two medians of h values each, √(π/2 · 2/h) · σ, where σ is
    1.4826 times the median absolute deviation from the values' own half's median: a spike does not widen it,
    and neither does the trend that is looked for.
    """
    half = len(values) // 2
    older, newer = list(values[:half]), list(values[half:])
    middles = median(older), median(newer)
    difference = abs(middles[1] - middles[0])
    if difference <= tolerance * median(values):
        return True
    deviations = [abs(value - middles[0]) for value in older] + [abs(value - middles[1]) for value in newer]
    sigma = _MAD_TO_SIGMA * median(deviations)
    return difference <= _NORMAL_975 * sigma * math.sqrt(_MEDIAN_EFFICIENCY * 2 / half)


STEADY = 0.005
"""Blocks whose medians are all within this share of the whole's are steady."""

EARLIEST_S, _EARLIEST_SHARE = 8.0, 1 / 3
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

    def warm_up(self) -> WarmUp:
        """What ends the warm-up."""
        return WarmUp(self.warmup_s, self.min_warmups, self.max_warmup_s)


class StoppingRule:
    """Ends a pass after its duration, or earlier where it is steady.

    An interval that happens to be narrow is no sign of that: it often is while one of two modes lasts.
    Steadiness is looked at only at counts that grow by a quarter each, for a look takes time.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._earliest_s = max(EARLIEST_S, _EARLIEST_SHARE * limits.duration_s)
        self._values = array("d")
        self._next = limits.min_queries
        self.ended_by: Literal["steady", "duration"] | None = None

    def add(self, latency_ms: float) -> None:
        """One more query has finished."""
        self._values.append(latency_ms)

    def take_back(self, count: int) -> None:
        """The last `count` queries were disturbed and do not count. A duration stays reached."""
        del self._values[len(self._values) - count :]
        if count and self.ended_by == "steady":
            self.ended_by = None

    def is_finished(self, elapsed_s: float) -> bool:
        """Whether the pass may end; `elapsed_s` counts from its first sample."""
        if self.ended_by is not None:
            return True
        count = len(self._values)
        if elapsed_s >= self._limits.duration_s and count >= self._limits.min_queries:
            self.ended_by = "duration"
        elif self._limits.stop_early and elapsed_s >= self._earliest_s and count >= self._next:
            self._next = math.ceil(count * _GROWTH)
            if is_steady(np.array(self._values)):
                self.ended_by = "steady"
        return self.ended_by is not None

    @property
    def interval(self) -> Interval | None:
        """The median's; None without any query."""
        return percentile_interval(np.array(self._values), 50.0) if self._values else None

    @property
    def reason(self) -> str:
        """For the record, once it has ended."""
        known = f"median {interval.text}" if (interval := self.interval) is not None else "0 queries"
        if self.ended_by == "steady":
            return f"steady: {_BLOCKS} blocks agree within ±{STEADY:.2%}, {known}"
        return f"sampled for {self._limits.duration_s:g} s: {known}"


def is_steady(values: NDArray[np.float64]) -> bool:
    """Whether the medians of 20 consecutive blocks are all within `STEADY` of the whole's."""
    if len(values) < _BLOCKS:
        return False
    medians = np.array([np.median(block) for block in np.array_split(values, _BLOCKS)])
    whole = float(np.median(values))
    return bool(np.abs(medians - whole).max() <= STEADY * whole)
