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

_BLOCKS = 50
"""So many show spells of a fiftieth of the run; more would hold too few values each to tell a spell."""

_MIN_BLOCKED = 40
"""Fewer values are too few for blocks, and count as independent."""

_SKEW = 0.474
"""Cornish and Fisher's (z² - 1) / 6 at 95 %."""

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
    """A percentile of `count` values with its 95 % interval, in the values' unit.

    A bound is None where it lies beyond the values: they are too few, or came in too few spells of noise.
    """

    value: float
    low: float | None
    high: float | None
    count: int

    @property
    def relative_half_width(self) -> float:
        """Half the interval over the value; infinite where a bound is missing."""
        if self.low is None or self.high is None:
            return math.inf
        return (self.high - self.low) / 2 / self.value if self.value else 0.0

    @property
    def text(self) -> str:
        """How well it is known, in words."""
        if self.relative_half_width == math.inf:
            return f"of {self.count} queries, too few for their noise to tell how well it is known"
        return f"known to ±{self.relative_half_width:.2%} from {self.count} queries"


def percentile_interval(values: Sequence[float] | NDArray[np.float64], p: float) -> Interval:
    """The 95 % interval of the p-th percentile between two order statistics.

    No distribution is assumed: latencies are skewed and have spikes, which move ranks by no more than one.
    The ranks are those at which the share of values below the percentile, q = p / 100, may be by its own
    noise: its variance is q·(1 - q)·τ / n, where τ is by how much autocorrelation inflates it (Heidelberger
    and Lewis, Quantile estimation in dependent sequences, Operations Research 32(1), 1984). It is estimated
    from the shares in 50 consecutive blocks, as those of a machine that changes between two states
    (`_spells`). A run knows these by the number of their spells, which Student's t gets for what they
    inflate: after one spell or two hardly a bound lies within the values. Noise that is seen in the median
    holds for all percentiles. Few values beyond a high percentile are skewed: Cornish and Fisher's first
    term moves the ranks.
    """
    if not len(values):
        raise ValueError("no percentile of no values")
    array, q = np.asarray(values, dtype=np.float64), p / 100
    count, value = len(array), float(np.percentile(array, p))
    if count < _MIN_COUNT:
        return Interval(value, None, None, count)
    below = _below(array, value)
    shares = _block_shares(below)
    at_median = _block_shares(_below(array, float(np.median(array))))
    correlations, spells = zip(_spells(shares), _spells(at_median), strict=True)
    single = float(below.var()) * len(shares) / count
    scatter = float(shares.var(ddof=1)) / single if single else 1.0
    inflation = max(1.0, max(correlations) * scatter)
    middle = count * q + _SKEW * (1 - 2 * q) * inflation
    squares = student(math.inf) ** 2 + student(max(1.0, min(spells) - 1)) ** 2 * (inflation - 1)
    half = math.sqrt(count * q * (1 - q) * squares)
    low, high = math.floor(middle - half), math.ceil(middle + half) - 1
    ordered = np.sort(array)
    least, most = (float(ordered[rank]) if 0 <= rank < count else None for rank in (low, high))
    if least is not None and least == most:
        step = clock_step(array)
        least, most = least - step, least + step
    return Interval(value, least, most, count)


def _below(array: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """Of each value whether it is below a level, 1 or 0; a value equal to it counts half."""
    return (np.asarray(array < level, np.float64) + np.asarray(array <= level, np.float64)) / 2


def _block_shares(below: NDArray[np.float64]) -> NDArray[np.float64]:
    """The shares of some 50 blocks of equal length up to the last value; of fewer values, each one's."""
    length = max(1, len(below) // _BLOCKS)
    blocks = len(below) // length
    shares: NDArray[np.float64] = below[-blocks * length :].reshape(blocks, length).mean(axis=1)
    return shares


def _spells(shares: NDArray[np.float64]) -> tuple[float, float]:
    """By how much the order of blocks inflates their mean's variance; how many spells either state had.

    Two states are separated where that explains most of the variance (Otsu, A threshold selection method
    from gray-level histograms, IEEE Transactions on Systems, Man, and Cybernetics 9(1), 1979). Neighbours of
    a Markov chain that had one of them in a share u of k blocks and changed S times, its end joined to its
    beginning, are correlated by λ = 1 - S / 2u(1 - u)k, and those of normal noise whose states these are by
    ρ = sin(πλ/2), which is more. Independent blocks have 0; the variance is inflated by (1 + ρ) / (1 - ρ).
    """
    blocks = len(shares)
    if blocks < _MIN_BLOCKED or shares.min() == shares.max():
        return 1.0, _BLOCKS / 4
    ordered = np.sort(shares)
    lower, sums = np.arange(1, blocks), np.cumsum(ordered)
    apart = (sums[-1] - sums[:-1]) / (blocks - lower) - sums[:-1] / lower
    explained = np.where(np.diff(ordered) > 0, lower * (blocks - lower) * apart**2, -1.0)
    is_upper = shares > ordered[np.argmax(explained)]
    upper, changes = float(is_upper.mean()), np.count_nonzero(is_upper != np.roll(is_upper, 1))
    rho = math.sin(math.pi / 2 * max(0.0, 1 - changes / (2 * upper * (1 - upper) * blocks)))
    return (1 + rho) / (1 - rho), changes / 2


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
