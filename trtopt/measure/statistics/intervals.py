"""How well a run of latencies knows its percentiles: one place for every confidence interval's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
_MIN_COUNT = 6
"""Below six values even the whole range covers the median less than 95 % of the time: 1 - 2^(1-n)."""

_BLOCKS = 20
"""Schmeiser, Batch size effects in the analysis of simulation output, Operations Research 30(3), 1982:
10 to 30 batches are as good as any number."""

_MOST_CORRELATED = 0.95

MIN_INDEPENDENT = 3.0
"""From fewer independent blocks Student's t is so wide that the interval says nothing."""

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
class Interval:
    """A percentile of `count` values with its 95 % interval, in the values' unit; a bound that lies beyond
    the values is None.

    `independent` is how many independent blocks the run is worth, 20 at most. Where it is not `resolved`, the
    noise is as long as the run and no interval can be had: the bounds are the blocks' lowest and highest
    percentile.
    """

    value: float
    low: float | None
    high: float | None
    count: int
    independent: float

    @property
    def resolved(self) -> bool:
        """Whether there are enough independent blocks."""
        return self.independent >= MIN_INDEPENDENT

    @property
    def relative_half_width(self) -> float:
        """Half the interval over the value; infinite where a bound is missing or there are too few blocks."""
        if self.low is None or self.high is None or not self.resolved:
            return math.inf
        return (self.high - self.low) / 2 / self.value if self.value else 0.0

    @property
    def text(self) -> str:
        """How well it is known, in words."""
        if not self.resolved:
            return (
                f"between {self.low:.4g} and {self.high:.4g} ms in blocks, of which too few are independent "
                f"({self.independent:.1f}): the noise is as long as the run"
            )
        if self.relative_half_width == math.inf:
            return f"of {self.count} queries, too few to tell how well it is known"
        return f"known to ±{self.relative_half_width:.2%} from {self.count} queries"


def percentile_interval(values: Sequence[float] | NDArray[np.float64], p: float) -> Interval:
    """The 95 % interval of the p-th percentile between two order statistics.

    No distribution is assumed: latencies are skewed and have spikes, which move ranks by no more than one.
    The ranks are those at which the share of values below the percentile, q = p / 100, may be by its own
    noise: its variance is q·(1 - q)·τ / n, where τ is by how much autocorrelation inflates it (Heidelberger
    and Lewis, Quantile estimation in dependent sequences, Operations Research 32(1), 1984). It is estimated
    from the shares in 20 consecutive blocks, as those of an AR(1) process: blocks that resemble their
    neighbours, as under noise that is longer than a block, count for fewer, and Student's t has the degrees
    of freedom of as many as are independent. Noise that is seen in the median holds for all percentiles.
    Few values beyond a high percentile are skewed: Cornish and Fisher's first term moves the ranks.

    Raises:
        ValueError: no values.
    """
    if not len(values):
        raise ValueError("no percentile of no values")
    array, q = np.asarray(values, dtype=np.float64), p / 100
    count, value = len(array), float(np.percentile(array, p))
    if count < _MIN_COUNT:
        return Interval(value, None, None, count, _BLOCKS)
    below = _below(array, value)
    correlated = max(_correlation(below), _correlation(_below(array, float(np.median(array)))))
    independent = _BLOCKS / correlated
    if independent < MIN_INDEPENDENT:
        found = [float(np.percentile(block, p)) for block in np.array_split(array, _BLOCKS)]
        return Interval(value, min(found), max(found), count, independent)
    inflation = max(1.0, correlated * _inflation(below))
    t = student(max(1.0, independent - 1))
    middle = count * q + (t * t - 1) / 6 * (1 - 2 * q) * inflation
    half = t * math.sqrt(count * q * (1 - q) * inflation)
    low, high = math.floor(middle - half), math.ceil(middle + half) - 1
    ordered = np.sort(array)
    bounds = (
        float(ordered[low]) if low >= 0 else None,
        float(ordered[high]) if high < count else None,
    )
    if bounds[0] is not None and bounds[0] == bounds[1]:
        step = clock_step(array)
        bounds = (bounds[0] - step, bounds[0] + step)
    return Interval(value, *bounds, count, independent)


def _below(array: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """Of each value whether it is below a level, 1 or 0; a value equal to it counts half."""
    return (np.asarray(array < level, np.float64) + np.asarray(array <= level, np.float64)) / 2


def _block_shares(below: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of each of the last 20 blocks of equal length; fewer than 40 values are too few for any."""
    length = len(below) // _BLOCKS
    shares: NDArray[np.float64] = below[len(below) - length * _BLOCKS :].reshape(_BLOCKS, length).mean(axis=1)
    return shares


def _inflation(below: NDArray[np.float64]) -> float:
    """The variance of the blocks' shares, over what it were for independent values.

    Over the whole run, so that slow drift counts as well as correlation between neighbours.
    """
    length, single = len(below) // _BLOCKS, float(below.var())
    return length * float(_block_shares(below).var(ddof=1)) / single if length > 1 and single else 1.0


def _correlation(below: NDArray[np.float64]) -> float:
    """(1 + ρ) / (1 - ρ), ρ ≥ 0 the correlation of neighbouring blocks' shares.

    Of an AR(1) process that is by how much the variance of its mean exceeds that of independent values. ρ as
    estimated is too small by (1 + 3ρ) / k for k blocks (Kendall, Biometrika 41(3/4), 1954).
    """
    if len(below) < 2 * _BLOCKS:
        return 1.0
    shares = _block_shares(below)
    deviations = shares - shares.mean()
    squares = float(deviations @ deviations)
    if not squares:
        return 1.0
    found = float(deviations[1:] @ deviations[:-1]) / squares
    rho = min(max(0.0, found + (1 + 3 * found) / _BLOCKS), _MOST_CORRELATED)
    return (1 + rho) / (1 - rho)


def clock_step(values: Sequence[float] | NDArray[np.float64]) -> float:
    """The step of the clock that took these milliseconds, as far as they show it.

    The least distance between two of them; if all are equal, the place of their last digit, to the
    nanosecond, which no clock here resolves.
    """
    ns = np.unique(np.round(np.asarray(values, np.float64) * 1e6).astype(np.int64))
    if len(ns) > 1:
        return float(np.diff(ns).min()) * 1e-6
    digits = str(int(ns[0]))
    return float(10 ** (len(digits) - len(digits.rstrip("0")))) * 1e-6
