"""Do pairs of blocks agree on which side is slower, more than chance would have them? Pure.

Which side of a pair runs first is drawn at random. Whatever else made one of its blocks slow (a neighbour
that comes back every second, a clock that wanders) fell on either side with equal odds, however regular it
is. So Wilcoxon's signed-rank test on the pairs needs no assumption on the noise. Ranks, because one pair that
was badly disturbed should not outweigh all others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np


def log_ratios(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> list[float]:
    """Of each pair of blocks, the logarithm of B's median over A's."""
    medians = [(math.log(median(ours)), math.log(median(theirs))) for ours, theirs in zip(a, b, strict=True)]
    return [theirs - ours for ours, theirs in medians]  # of one size either way round: ranks must tie


def chance(differences: Sequence[float]) -> float:
    """How often random signs would make these differences as one-sided as they are, or more: a p-value.

    Differences of 0 take no side and are left out; equal ones share their ranks.
    """
    taken = np.array([difference for difference in differences if difference])
    _, first, count = np.unique(np.abs(taken), return_inverse=True, return_counts=True)
    ranks = (2 * np.cumsum(count) - count + 1)[first]  # doubled: shared ranks are halves
    whole = int(ranks.sum())
    positive = int(ranks[taken > 0].sum())
    odds = np.zeros(whole + 1)  # of each sum of ranks with a positive sign
    odds[0] = 1.0
    for rank in ranks:
        odds[rank:] = odds[rank:] + odds[: whole + 1 - rank]
        odds /= 2
    return min(1.0, 2 * float(odds[max(positive, whole - positive) :].sum()))
