"""When the device is busy, and when it waits for the next launch."""

from __future__ import annotations

from collections.abc import Sequence

Interval = tuple[float, float]
"""Start and end."""


def gaps_before(intervals: Sequence[Interval]) -> list[float]:
    """For each interval, in the order of starts, how long nothing ran before it; 0 for the first."""
    gaps: list[float] = []
    reached: float | None = None
    for start, end in intervals:
        gaps.append(0.0 if reached is None else max(0.0, start - reached))
        reached = end if reached is None else max(reached, end)
    return gaps


def overlaps(intervals: Sequence[Interval]) -> list[float]:
    """For each interval, in the order of starts, for how long an earlier one still ran."""
    found: list[float] = []
    reached: float | None = None
    for start, end in intervals:
        found.append(0.0 if reached is None else min(max(0.0, reached - start), end - start))
        reached = end if reached is None else max(reached, end)
    return found


def span_of(intervals: Sequence[Interval]) -> float:
    """From the first start to the last end."""
    return max(end for _, end in intervals) - min(start for start, _ in intervals) if intervals else 0.0
