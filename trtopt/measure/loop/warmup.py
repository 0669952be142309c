"""When a pass has warmed up: pure, fed one latency at a time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from enum import Enum
from statistics import median

WINDOW = 20
"""So many last values are looked at, in two halves."""

TOLERANCE = 0.01
"""Halves whose medians differ by no more than this share agree: compare's practical threshold."""

_MAD_TO_SIGMA = 1.4826
_MEDIAN_EFFICIENCY = math.pi / 2
"""A median's variance is π/2 times a mean's, for normal values."""
_NORMAL_975 = 1.960


class WarmUpEnd(str, Enum):
    """What ended a warm-up."""

    SETTLED = "settled"
    TIME_LIMIT = "time limit"


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
        self.ended_by: WarmUpEnd | None = None

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
                self.ended_by = WarmUpEnd.SETTLED
                return True
        if elapsed_s >= self._max_s and self._count >= self._min_count:
            self.ended_by = WarmUpEnd.TIME_LIMIT
        return self.ended_by is not None

    @property
    def reason(self) -> str:
        """For the record."""
        if self.ended_by is None:
            return f"still warming up after {self._count} queries"
        if self.ended_by is WarmUpEnd.SETTLED:
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
