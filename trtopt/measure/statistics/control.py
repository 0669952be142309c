"""A/A controls: how far apart equal sides seem on this machine. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from trtopt.measure.contracts import THRESHOLD
from trtopt.measure.statistics.builds import Builds, spread
from trtopt.measure.statistics.comparison import (
    WINNER_CONFIDENCE,
    Block,
    Comparison,
    Noise,
    Ratio,
    RunSpread,
    Verdict,
    compare,
    decide,
    noise_of,
)
from trtopt.measure.statistics.intervals import student

MIN_RUNS = 4
"""Fewer separate runs do not show how much runs differ."""
Pair = tuple[Sequence[Block], Sequence[Block], Sequence[int], Sequence[bool] | None]
"""Both sides' blocks; of each pair of them the load in which it was taken, and whether in reverse order."""


@dataclass(frozen=True)
class Control:
    """Each A/A pair's verdict, and the noise that they show together; None from too few of them."""

    comparisons: tuple[Comparison, ...]
    noise: Noise | None

    def count(self, verdict: Verdict) -> int:
        """How many pairs got a verdict."""
        return sum(comparison.verdict is verdict for comparison in self.comparisons)


def run_spread(medians: Sequence[Builds]) -> RunSpread | None:
    """How much separate runs of one engine differ, from each batch size's medians: [process][load].

    A separate run is one load in one process: its variance is that between processes and that between the
    loads of one. Variances of the logarithms are averaged over batch sizes. None from fewer than `MIN_RUNS`
    processes of each.
    """
    counted = [spread(runs) for runs in medians if len(runs) >= MIN_RUNS]
    variances = [(one.between or 0.0) ** 2 + one.within**2 for one in counted if one.within is not None]
    if not variances:
        return None
    return RunSpread(math.sqrt(fmean(variances)), min(one.builds for one in counted))


def evaluate_control(pairs: Sequence[Pair], *, threshold: float = THRESHOLD) -> Control:
    """Compare each pair as A and B would be; every pair comes from a process of its own."""
    comparisons = tuple(
        compare(a, b, threshold=threshold, loads=loads, is_reversed=is_reversed)
        for a, b, loads, is_reversed in pairs
    )
    return Control(comparisons, noise_of_controls(comparisons, threshold=threshold))


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
