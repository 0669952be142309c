"""How well a run of latencies knows its median: one place for every confidence interval's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
MIN_COUNT = 6
"""Below six values even the whole range covers the median less than 95 % of the time: 1 - 2^(1-n)."""

_BATCHES = 20
"""Schmeiser, Batch size effects in the analysis of simulation output, Operations Research 30(3), 1982:
10 to 30 batches are as good as any number."""

_RESOLVING = 5
"""Sokal, Monte Carlo Methods in Statistical Mechanics, 1996: correlation is summed over some five times its
own length at least; seen through a shorter window it looks shorter than it is."""

_STUDENT = {
    0.95: (
        *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
        *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
        *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
    ),
    0.99: (
        *(63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169),
        *(3.106, 3.055, 3.012, 2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845),
        *(2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750),
    ),
}


def student(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Student's t for two-sided intervals of 95 % or 99 %, to three decimals.

    Degrees of freedom are rounded down, which widens intervals. Beyond 30 the Cornish-Fisher series
    z + (z³ + z) / 4ν + (5z⁵ + 16z³ + 3z) / 96ν² (Abramowitz and Stegun, 26.7.5) gives the tables' digits.

    Raises:
        ValueError: less than one degree of freedom, or another confidence.
    """
    if not freedom >= 1 or confidence not in _STUDENT:
        raise ValueError(f"no Student's t for {freedom:g} degrees of freedom at {confidence:g}")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    if freedom == math.inf:
        return z
    table, whole = _STUDENT[confidence], math.floor(freedom)
    if whole <= len(table):
        return table[whole - 1]
    return z + (z**3 + z) / (4 * whole) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * whole**2)


@dataclass(frozen=True)
class MedianInterval:
    """The median of `count` values with its 95 % interval, in the values' unit.

    `effective_count` is how many independent values would know the median as well.
    """

    median: float
    low: float
    high: float
    count: int
    effective_count: float

    @property
    def resolved(self) -> bool:
        """Whether the run is long enough to estimate its autocorrelation: batches of five times its length.

        If not, the interval is too narrow by an unknown factor.
        """
        return self.effective_count >= _BATCHES * _RESOLVING

    @property
    def relative_half_width(self) -> float:
        """Half the interval over the median; 0 for a median of 0."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


def median_interval(values: Sequence[float] | NDArray[np.float64]) -> MedianInterval | None:
    """The median's 95 % interval between two order statistics; None if there are too few values for one.

    No distribution is assumed: latencies are skewed and have spikes, which move ranks by no more than one.
    The ranks are n/2 ± t · √(n·τ)/2 with t of 19 degrees of freedom: the binomial interval's normal form,
    widened by τ, the factor by which autocorrelation inflates the variance of the share of values below the
    median. That share's variance is what the median's precision depends on (Heidelberger and Lewis,
    Quantile estimation in dependent sequences, Operations Research 32(1), 1984), so τ is estimated from it
    and not from the latencies themselves, whose autocorrelation a few spikes would hide.
    """
    array = np.asarray(values, dtype=np.float64)
    count = len(array)
    if count < MIN_COUNT:
        return None
    median = float(np.median(array))
    inflation = variance_inflation(array, median)
    half = student(_BATCHES - 1) * math.sqrt(count * inflation) / 2
    low = math.floor(count / 2 - half)
    high = math.ceil(count / 2 + half) - 1
    if low < 0:
        return None
    ordered = np.partition(array, (low, high))
    return MedianInterval(median, float(ordered[low]), float(ordered[high]), count, count / inflation)


def percentile_interval(
    values: Sequence[float] | NDArray[np.float64], p: float
) -> tuple[float | None, float | None]:
    """The 95 % interval of the p-th percentile, as `median_interval`'s for p = 50.

    The ranks are n·q ± t · √(n·q·(1 - q)·τ) with q = p / 100. A bound whose rank lies beyond the values is
    None: they are too few.
    """
    array, q = np.asarray(values, dtype=np.float64), p / 100
    count = len(array)
    if not count:
        return None, None
    inflation = variance_inflation(array, float(np.percentile(array, p)))
    half = student(_BATCHES - 1) * math.sqrt(count * q * (1 - q) * inflation)
    low, high = math.floor(count * q - half), math.ceil(count * q + half) - 1
    ordered = np.sort(array)
    return (
        float(ordered[low]) if low >= 0 else None,
        float(ordered[high]) if high < count else None,
    )


def variance_inflation(array: NDArray[np.float64], level: float) -> float:
    """τ ≥ 1: the variance of the share of values below a level, over what it were for independent values.

    The level is the percentile of interest. Estimated by 20 non-overlapping batches over the whole run, so
    that slow drift counts as well as correlation between neighbours: τ = b · var(batch shares) / var(single
    shares), b the batch's length. Values equal to the level count half. 1 for fewer than
    40 values, which show no correlation.
    """
    length = len(array) // _BATCHES
    if length < 2:
        return 1.0
    recent = array[-length * _BATCHES :]
    below = (np.asarray(recent < level, np.float64) + np.asarray(recent <= level, np.float64)) / 2
    shares = below.reshape(_BATCHES, length).mean(axis=1)
    single = float(below.var())
    return max(1.0, length * float(shares.var(ddof=1)) / single) if single else 1.0
