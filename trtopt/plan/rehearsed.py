"""How far rehearsals were from simulations of their own arrivals, stretch by stretch. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtopt.measure.statistics import needed_for
from trtopt.plan.prediction import percentile
from trtopt.records import Beyond

_STRETCHES, _ENOUGH = 5, 10
"""Of a rehearsal at most, and times what a percentile needs in each of them."""

_TRIMMED_FROM, _TRIMMED = 5, 0.1
"""From so many stretches on that share of them is left out at either end, one at least: a machine's one stall
says little of the setup.
"""

_MOST = 1000.0
"""Times what was simulated; as good as never, which a file cannot say."""


@dataclass(frozen=True)
class Rehearsal:
    """Milliseconds of each request in the order of arrival, infinite without an answer: measured, and in
    simulations of the same arrivals.
    """

    took_ms: NDArray[np.float64]
    simulated_ms: Sequence[NDArray[np.float64]]


def beyond(rehearsals: Sequence[Rehearsal], percentiles: Sequence[float]) -> tuple[Beyond, ...]:
    """Measured over simulated latency, at the percentiles that so many requests can tell, ascending."""
    told = ((p, _ratios(rehearsals, p)) for p in sorted(set(percentiles)))
    return tuple(_beyond(p, *ratios) for p, ratios in told if ratios[0])


def _ratios(rehearsals: Sequence[Rehearsal], p: float) -> tuple[list[float], list[float]]:
    """Of each stretch, and the relative variance that a simulation says it has by chance."""
    ratios: list[float] = []
    chance: list[float] = []
    for one in rehearsals:
        count = len(one.took_ms)
        if count < needed_for(p):
            continue
        stretches = max(1, min(_STRETCHES, count // (_ENOUGH * needed_for(p))))
        for stretch in np.array_split(np.arange(count), stretches):
            simulated_ms = [percentile(run[stretch], p) for run in one.simulated_ms]
            usual_ms = float(np.mean(simulated_ms))
            if math.isfinite(usual_ms):
                ratios.append(min(percentile(one.took_ms[stretch], p) / usual_ms, _MOST))
                chance.append(float(np.var(simulated_ms, ddof=1)) / usual_ms**2)
    return ratios, chance


def _beyond(p: float, ratios: Sequence[float], chance: Sequence[float]) -> Beyond:
    """The trimmed mean, and by how much a stretch is off it beyond chance: the Winsorised standard deviation
    over 1 - 2γ (Yuen, The two-sample trimmed t for unequal population variances, Biometrika 61, 1974).
    """
    count = len(ratios)
    cut = max(1, int(_TRIMMED * count)) if count >= _TRIMMED_FROM else 0
    kept = np.sort(ratios)[cut : count - cut]
    factor = float(kept.mean())
    winsorised = np.pad(kept, cut, mode="edge")
    spread = float(winsorised.std(ddof=1)) / (1 - 2 * cut / count) if count > 1 else 0.0
    by_chance = factor * math.sqrt(float(np.mean(chance)))
    return Beyond(
        p=p,
        factor=factor,
        spread=math.sqrt(max(0.0, spread**2 - by_chance**2)) / factor if factor else 0.0,
        stretches=count,
    )
