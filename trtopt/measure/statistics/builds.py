"""Comparing recipes: several builds a side, each run several times.

TensorRT times tactics while it builds, so two builds of one recipe are two engines. A difference between two
single engines is not one between their recipes: here the spread between builds is separated from the spread
between runs, and the verdict rests on builds, of which there are few, and not on runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

from trtopt.measure.contracts import THRESHOLD
from trtopt.measure.statistics.comparison import (
    WINNER_CONFIDENCE,
    Comparison,
    Noise,
    Ratio,
    Reason,
    ReasonCode,
    Verdict,
    decide,
    noise_of,
)
from trtopt.measure.statistics.intervals import student

Builds = Sequence[Sequence[float]]
"""The median latency of each run of each build."""


@dataclass(frozen=True)
class Spread:
    """One side's builds. Standard deviations relative to the latency (of its logarithm); None: not known."""

    builds: int
    runs: int
    geometric_mean: float
    """In the latencies' unit, every build counting alike."""
    between: float | None
    within: float | None

    @property
    def text(self) -> str:
        """For the report."""
        between = "unknown" if self.between is None else f"±{self.between:.2%}"
        within = "unknown" if self.within is None else f"±{self.within:.2%}"
        counts = f"{self.builds} builds, {self.runs} runs"
        return f"{counts}: {between} between builds, {within} between runs of one build"


def spread(builds: Builds) -> Spread:
    """Between- and within-build variance by random-effects analysis of variance on log latencies.

    With k builds and m_i runs each, N in all: within² = MSW; between² = max(0, (MSB - MSW) / m₀), with
    m₀ = (N - Σ m_i² / N) / (k - 1), which is m when all m_i are (Searle, Casella and McCulloch, Variance
    Components, 1992, chapter 3). Builds are known to differ only beyond what their runs do.
    """
    if not builds or any(not runs for runs in builds):
        raise ValueError("every side needs builds and every build needs runs")
    logs = [[math.log(value) for value in runs] for runs in builds]
    sizes = [len(runs) for runs in logs]
    means = [fmean(runs) for runs in logs]
    k, n = len(logs), sum(sizes)
    grand = sum(mean * size for mean, size in zip(means, sizes, strict=True)) / n
    within = between = None
    if n > k:
        squares = sum((value - mean) ** 2 for runs, mean in zip(logs, means, strict=True) for value in runs)
        within = squares / (n - k)
    if within is not None and k > 1:
        msb = sum(size * (mean - grand) ** 2 for size, mean in zip(sizes, means, strict=True)) / (k - 1)
        typical = (n - sum(size * size for size in sizes) / n) / (k - 1)
        between = max(0.0, (msb - within) / typical)
    return Spread(
        builds=k,
        runs=n,
        geometric_mean=math.exp(fmean(means)),
        between=None if between is None else math.sqrt(between),
        within=None if within is None else math.sqrt(within),
    )


def compare_builds(
    a: Builds,
    b: Builds,
    *,
    threshold: float = THRESHOLD,
    interfered: Sequence[str] = (),
) -> Comparison:
    """Compare two recipes by the mean log latency of each build.

    A build's mean carries its own luck and its runs' noise, so the spread of build means is the right
    yardstick, whichever of the two is larger: Welch's t interval on their difference, with
    Welch and Satterthwaite's degrees of freedom rounded down. More runs do not make up for few builds.
    Builds are independent of each other, as blocks are not, so a winner is held to the same 95 % as SAME.
    """
    means_a, means_b = ([fmean(math.log(value) for value in runs) for runs in side] for side in (a, b))
    difference = fmean(means_b) - fmean(means_a)
    if min(len(a), len(b)) < 2:
        found = f"{len(a)} and {len(b)} builds, which differ by {math.exp(difference) - 1:+.1%}"
        text = f"{found}: one build does not show the spread between builds; give --builds 2 or more"
        return decide(None, threshold, None, [Reason(ReasonCode.TOO_FEW_BUILDS, text)])
    half = _welch_half_width(means_a, means_b)
    return decide(Ratio.of_log(difference, half, half), threshold, None, (), interfered)


def _welch_half_width(a: Sequence[float], b: Sequence[float]) -> float:
    errors = [variance(side) / len(side) for side in (a, b)]
    total = sum(errors)
    if total == 0:
        return 0.0
    freedom = total**2 / sum(e**2 / (len(side) - 1) for e, side in zip(errors, (a, b), strict=True))
    return student(freedom) * math.sqrt(total)


# ── A/A controls: how far apart equal sides seem on this machine ──────────────────────────────────────


MIN_RUNS = 4
"""Fewer separate runs do not show how much runs differ."""


@dataclass(frozen=True)
class Control:
    """Each A/A pair's verdict, compared as A and B would be, and the noise that they show together.

    Every pair comes from a process of its own; too few of them show no noise.
    """

    comparisons: tuple[Comparison, ...]
    noise: Noise | None

    def count(self, verdict: Verdict) -> int:
        """How many pairs got a verdict."""
        return sum(comparison.verdict is verdict for comparison in self.comparisons)


def run_spread(medians: Sequence[Builds]) -> tuple[float, int] | None:
    """How much separate runs of one engine differ, from each batch size's medians: [process][load].

    That is the standard deviation of the logarithm of a run's median, and how many runs showed it. A separate
    run is one load in one process: its variance is that between processes and that between the loads of one.
    Variances of the logarithms are averaged over batch sizes. None from fewer than `MIN_RUNS` processes of
    each.
    """
    counted = [spread(runs) for runs in medians if len(runs) >= MIN_RUNS]
    variances = [(one.between or 0.0) ** 2 + one.within**2 for one in counted if one.within is not None]
    if not variances:
        return None
    return math.sqrt(fmean(variances)), min(one.builds for one in counted)


def noise_of_controls(controls: Sequence[Comparison], *, threshold: float = THRESHOLD) -> Noise | None:
    """How far apart equal sides may seem, at 95 %, from several controls.

    What K processes drew each, with as many loads as a comparison has, is in the spread of their log ratios
    about the true 0: t(K) · √(Σ r² / K). Loads are in a comparison's own interval, too, so that a verdict
    which allows for both errs towards UNDECIDED. All of them together are evaluated as one control: a side
    that wins on average wins for a reason that has nothing to do with what is compared.
    """
    ratios = [control.ratio for control in controls if control.ratio is not None]
    if len(ratios) < 2:
        return noise_of(controls[0]) if ratios and len(controls) == 1 else None
    logs, k = [math.log(ratio.value) for ratio in ratios], len(ratios)
    relative = math.expm1(student(k) * math.sqrt(fmean(value * value for value in logs)))
    error = stdev(logs) / math.sqrt(k)
    sure = student(k - 1, WINNER_CONFIDENCE) * error
    mean = Ratio.of_log(fmean(logs), student(k - 1) * error, sure)
    return Noise(relative, decide(mean, threshold))
