"""What differences between loads come to when the sign of each is a toss-up unless the sides differ. Pure.

Which engine of a pair was loaded first, and which ran first, is drawn at random. Whatever else made one of
them slow (what its load keeps, a neighbour that comes back every second, a clock that wanders) fell on either
side with equal odds, however regular it is. So the sign test needs no assumption on the noise, and the
interval of all shifts that it does not reject, between two order statistics, covers the true one. Only signs
count, because a load in which a neighbour took turns with one side may be off by a third.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import median

MIN_IN_PLACE = 4
"""Loads in either order that show what the order does."""


def log_ratios(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> list[float]:
    """Of each pair of blocks, the logarithm of B's median over A's."""
    medians = [(math.log(median(ours)), math.log(median(theirs))) for ours, theirs in zip(a, b, strict=True)]
    return [theirs - ours for ours, theirs in medians]


def by_load(values: Sequence[float], loads: Sequence[int]) -> dict[int, float]:
    """The median of the values of each load, by its number."""
    found: dict[int, list[float]] = {}
    for value, load in zip(values, loads, strict=True):
        found.setdefault(load, []).append(value)
    return {load: median(own) for load, own in found.items()}


def without_place(logs: Mapping[int, float], is_reversed: Mapping[int, bool]) -> list[float]:
    """The log ratios of loads, without what being loaded second costs.

    What is loaded first gets the same places again and again (benchmarks/contexts), and every second load is
    in the reverse order: half the difference between the two orders' medians is the place's.
    """
    sides = [[log for load, log in logs.items() if is_reversed[load] is which] for which in (False, True)]
    if min(map(len, sides)) < MIN_IN_PLACE:
        return list(logs.values())
    place = (median(sides[0]) - median(sides[1])) / 2
    return [log + place if is_reversed[load] else log - place for load, log in logs.items()]


def interval(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """The exact interval of the median of independent values, between the k-th from either end."""
    left_out = _left_out(len(values), round((1 - confidence) / 2, 9))
    if not left_out:
        raise ValueError(f"no {confidence:.0%} interval from {len(values)} values")
    ordered = sorted(values)
    return ordered[left_out - 1], ordered[-left_out]


@lru_cache(maxsize=64)
def _left_out(count: int, tail: float) -> int:
    """The largest k: of `count` tosses fewer than k are heads with a probability of `tail` at most."""
    heads, odds = 0, 0.0
    while (odds := odds + math.comb(count, heads) / 2**count) <= tail:
        heads += 1
    return heads
