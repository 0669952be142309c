"""What to choose among measured points: the Pareto front, its knee, the best under a bound. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

_STEPS = (1.0, 2.0, 5.0)
_ROUNDING = 1e-9
"""A point this little above the line is on it."""


def pareto_front(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """Indices of the points that no other beats, by rising cost.

    A point is beaten by one that costs no more and gains no less, and does better in one of the two. Of
    points that are equal in both the first counts.
    """
    order = sorted(range(len(costs)), key=lambda index: (costs[index], -gains[index], index))
    front: list[int] = []
    for index in order:
        if not front or gains[index] > gains[front[-1]]:
            front.append(index)
    return front


def knee(costs: Sequence[float], gains: Sequence[float]) -> int | None:
    """Where on a front more cost begins to buy less: the point farthest above the line between its ends.

    Both axes are scaled to the front's own span (Satopää et al., "Finding a Kneedle in a Haystack", 2011;
    without its smoothing, for the points are few). None where no point lies above that line.

    Args:
        costs: of the front's points, rising.
        gains: of the same points, rising.
    """
    if len(costs) < 3:
        return None
    width, height = costs[-1] - costs[0], gains[-1] - gains[0]
    above = [
        (gain - gains[0]) / height - (cost - costs[0]) / width
        for cost, gain in zip(costs, gains, strict=True)
    ]
    best = max(range(len(above)), key=above.__getitem__)
    return best if above[best] > _ROUNDING else None


def best_under(bound: float, costs: Sequence[float], gains: Sequence[float]) -> int | None:
    """The index of the highest gain at a cost of `bound` at most; the cheaper of two; None if none is."""
    fitting = [index for index, cost in enumerate(costs) if cost <= bound]
    return min(fitting, key=lambda index: (-gains[index], costs[index]), default=None)


def round_bounds(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, … from the first that `low` fits under to the first that `high` does.

    Raises:
        ValueError: not 0 < low <= high.
    """
    if not 0 < low <= high:
        raise ValueError(f"no span of positive numbers: {low} to {high}")
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1
    series = [float(f"{step:g}e{decade}") for decade in range(first, last + 1) for step in _STEPS]
    top = next(bound for bound in series if bound >= high)
    return [bound for bound in series if low <= bound <= top]
