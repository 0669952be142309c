"""What differences of pairs come to when the sign of each is a toss-up unless the sides differ. Pure.

Which engine of a pair was loaded first, and which ran first, is drawn at random. Whatever else made one of
them slow (what its load keeps, a neighbour that comes back every second, a clock that wanders) fell on either
side with equal odds, however regular it is. So Wilcoxon's signed-rank test needs no assumption on the noise,
and the interval of all shifts that it does not reject covers the true one: ranks, because one pair that was
badly disturbed should not outweigh all others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import median

import numpy as np
from numpy.typing import NDArray


def log_ratios(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> list[float]:
    """Of each pair of blocks, the logarithm of B's median over A's."""
    medians = [(math.log(median(ours)), math.log(median(theirs))) for ours, theirs in zip(a, b, strict=True)]
    return [theirs - ours for ours, theirs in medians]


def by_load(values: Sequence[float], loads: Sequence[int]) -> dict[int, float]:
    """The median of the values of each load, by its number.

    Raises:
        ValueError: not as many loads as values.
    """
    found: dict[int, list[float]] = {}
    for value, load in zip(values, loads, strict=True):
        found.setdefault(load, []).append(value)
    return {load: median(own) for load, own in found.items()}


def centre(values: Sequence[float]) -> float:
    """The median of all pairs' averages, each value's with itself among them.

    Hodges and Lehmann, Estimates of Location Based on Rank Tests, Annals of Mathematical Statistics 34(2),
    1963.
    """
    return float(np.median(_averages(values)))


def interval(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """The exact interval of `centre` for independent values with a symmetric distribution.

    Between the k-th of the sorted averages from either end, where ranks would be as one-sided as the first k
    averages have them in no more than (1 - confidence) / 2 of all draws of signs.

    Raises:
        ValueError: so few values that all of them have one sign in more than (1 - confidence) of all draws.
    """
    averages = _averages(values)
    left_out = _left_out(len(values), round((1 - confidence) / 2, 9))
    if not left_out:
        raise ValueError(f"no {confidence:.0%} interval from {len(values)} values")
    return float(averages[left_out - 1]), float(averages[-left_out])


def _averages(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values, np.float64)
    rows, columns = np.triu_indices(len(array))
    return np.sort((array[rows] + array[columns]) / 2)


@lru_cache(maxsize=64)
def _left_out(count: int, tail: float) -> int:
    """How many sums of ranks, from the lowest, have a probability of `tail` at most together."""
    odds = np.zeros(count * (count + 1) // 2 + 1)
    odds[0] = 1.0
    for rank in range(1, count + 1):
        odds[rank:] = odds[rank:] + odds[: len(odds) - rank]
        odds /= 2
    return int(np.searchsorted(np.cumsum(odds), tail, side="right"))
