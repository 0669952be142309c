"""What spoilt a run: groups to discard, drift, two modes. Pure, on readings and numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trtopt.device.clocks import faults_of
from trtopt.records import ClockReading

POWER_CAP = "sw_power_cap"
MAX_DISCARDED_SHARE = 0.2
"""A run that lost more than a fifth of its groups is not trusted: what is left was taken next to the same."""

NOTABLE_DRIFT = 0.01
NOTABLE_GAP = 0.02
_DRIFT_BLOCKS = 20
_NORMAL_995 = 2.576
_MIN_MODE_SHARE = 0.1
_VALLEY_DEPTH = 0.5
_GRID = 512

Values = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True)
class Interference:
    """Why each group of a run's samples is to be discarded; without reasons it stays.

    `clocks_known` is whether any reading has the SM clock.
    """

    groups: tuple[tuple[str, ...], ...]
    clocks_known: bool

    @property
    def discarded(self) -> list[int]:
        """The groups whose samples must not count."""
        return [index for index, reasons in enumerate(self.groups) if reasons]

    @property
    def untrustworthy(self) -> bool:
        """Whether too many groups were discarded."""
        return len(self.discarded) > MAX_DISCARDED_SHARE * len(self.groups)

    @property
    def text(self) -> str:
        """For the report; empty if there is nothing to say."""
        if not self.clocks_known:
            return "clocks are unknown: nothing could be discarded"
        if not self.discarded:
            return ""
        found = Counter(reason for reasons in self.groups for reason in reasons)
        reasons = ", ".join(f"{reason} ({count})" for reason, count in found.items())
        return f"{len(self.discarded)} of {len(self.groups)} groups of samples discarded: {reasons}"


def evaluate_groups(readings: Sequence[ClockReading], application_mhz: int | None) -> Interference:
    """Which groups of samples to discard: group i was taken between reading i and reading i + 1.

    Either reading can condemn it: a slowdown that began or ended inside the group touched some of it. A
    reading of an idle GPU does not show its clock under load. Without readings nothing is discarded, and
    the clocks are unknown.
    """
    faults = [faults_of(reading, application_mhz) for reading in readings]
    groups = tuple(tuple(dict.fromkeys((*before, *after))) for before, after in pairwise(faults))
    return Interference(groups, clocks_known=any(reading.sm_mhz is not None for reading in readings))


# ── the samples themselves ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Drift:
    """How far latency moved from a run's beginning to its end, over its median. `significant` is at 99 %."""

    relative: float
    significant: bool

    @property
    def notable(self) -> bool:
        """Significant and at least 1 %."""
        return self.significant and abs(self.relative) >= NOTABLE_DRIFT


def drift(values: Values) -> Drift | None:
    """The trend over a run, in order of time; None for fewer than 20 values.

    On the medians of 20 consecutive blocks, which spikes do not move and in which most autocorrelation has
    averaged out: Theil-Sen slope (median of all pairs' slopes), and Mann-Kendall's test for its significance,
    z = (|S| - 1) / √(n(n-1)(2n+5)/18).
    """
    length = len(values) // _DRIFT_BLOCKS
    if length == 0:
        return None
    array = np.asarray(values[: length * _DRIFT_BLOCKS], np.float64)
    medians = np.median(array.reshape(_DRIFT_BLOCKS, length), axis=1)
    first, second = np.triu_indices(_DRIFT_BLOCKS, k=1)
    rises = medians[second] - medians[first]
    slope = float(np.median(rises / (second - first)))
    n = _DRIFT_BLOCKS
    score = (abs(float(np.sign(rises).sum())) - 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    middle = float(np.median(array))
    return Drift(slope * n / middle if middle else 0.0, score > _NORMAL_995)


@dataclass(frozen=True)
class Modes:
    """Two peaks of a run's latencies, in their unit, and the share of values in the upper one."""

    lower: float
    upper: float
    upper_share: float


def two_modes(values: Values) -> Modes | None:
    """The two main modes, if latency has two; None for one mode, or fewer than 100 values.

    A density estimate with Silverman's bandwidth 0.9 · min(σ, IQR/1.34) · n^-1/5, never finer than the
    clock's resolution or a fifth of the gap that matters. Two peaks count if they are at least 2 % apart, the
    valley between them is below half of the lower peak, and each side has a tenth of all values. A long tail
    is one mode, and so are steps of a coarse clock.
    """
    if len(values) < 100:
        return None
    array = np.sort(np.asarray(values, np.float64))
    array = array[int(0.01 * len(array)) : math.ceil(0.99 * len(array))]  # the grid must not span spikes
    median = float(np.median(array))
    grid, density = _density(array, _bandwidth(array, median))
    peaks = [i for i in range(1, _GRID - 1) if density[i - 1] < density[i] >= density[i + 1]]
    best: Modes | None = None
    best_height = 0.0
    for position, low in enumerate(peaks):
        for high in peaks[position + 1 :]:
            valley = low + int(np.argmin(density[low : high + 1]))
            height = float(min(density[low], density[high]))
            upper = 1 - float(np.searchsorted(array, grid[valley])) / len(array)
            apart = grid[high] - grid[low] >= NOTABLE_GAP * median
            shares = min(upper, 1 - upper) >= _MIN_MODE_SHARE
            if apart and shares and density[valley] < _VALLEY_DEPTH * height and height > best_height:
                best, best_height = Modes(float(grid[low]), float(grid[high]), upper), height
    return best


def _bandwidth(ordered: NDArray[np.float64], median: float) -> float:
    quarter, three = np.quantile(ordered, (0.25, 0.75))
    spread = float(ordered.std())
    scale = min(spread, float(three - quarter) / 1.34) or spread
    steps = np.diff(np.unique(ordered))
    resolution = float(np.median(steps)) if len(steps) else 0.0
    silverman = 0.9 * scale * float(len(ordered) ** -0.2)
    return max(silverman, resolution, NOTABLE_GAP * median / 5)


def _density(
    ordered: NDArray[np.float64], bandwidth: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A Gaussian kernel estimate on an even grid three bandwidths beyond the values, up to a factor."""
    edges = np.linspace(ordered[0] - 3 * bandwidth, ordered[-1] + 3 * bandwidth, _GRID + 1)
    grid = (edges[:-1] + edges[1:]) / 2
    counts = np.histogram(ordered, edges)[0].astype(np.float64)
    reach = (np.arange(2 * _GRID - 1) - (_GRID - 1)) * (edges[1] - edges[0])
    return grid, np.convolve(counts, np.exp(-0.5 * (reach / bandwidth) ** 2), mode="valid")
