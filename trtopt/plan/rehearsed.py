"""How far rehearsals were from simulations of their own arrivals. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtopt.measure.statistics import needed_for
from trtopt.plan.prediction import percentile
from trtopt.records import Beyond

_FEWEST, _MOST_STRETCHES, _ENOUGH = 3, 5, 10
"""Of a rehearsal, where each has that many times what a percentile needs; else all of it is one stretch."""

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
    found = []
    for p in sorted(set(percentiles)):
        each = [one for rehearsal in rehearsals if (one := _beyond(rehearsal, p)) is not None]
        if each:
            found.append(_together(p, [factor for factor, _ in each], [chance for _, chance in each]))
    return tuple(found)


def _beyond(rehearsal: Rehearsal, p: float) -> tuple[float, float] | None:
    """The factor of one rehearsal, and which variance simulations say that it has by chance.

    The median of its stretches: where the machine stalled once, that says little of the setup.
    """
    count = len(rehearsal.took_ms)
    if count < needed_for(p):
        return None
    stretches = min(_MOST_STRETCHES, count // (_ENOUGH * needed_for(p)))
    parts = np.array_split(np.arange(count), stretches if stretches >= _FEWEST else 1)
    simulated_ms = np.array([[percentile(run[part], p) for part in parts] for run in rehearsal.simulated_ms])
    usual_ms = simulated_ms.mean(axis=0)
    told = np.isfinite(usual_ms)
    if not told.any():
        return None
    took_ms = np.array([percentile(rehearsal.took_ms[part], p) for part in parts])
    by_chance = np.median(simulated_ms[:, told] / usual_ms[told], axis=1)
    factor = min(float(np.median(took_ms[told] / usual_ms[told])), _MOST)
    return factor, factor**2 * float(by_chance.var(ddof=1))


def _together(p: float, factors: Sequence[float], chances: Sequence[float]) -> Beyond:
    """Of processes that differ from one another, and by chance."""
    count, mean = len(factors), float(np.mean(factors))
    variance = float(np.var(factors, ddof=1)) if count > 1 else 0.0
    between = max(0.0, variance - float(np.mean(chances)))
    return Beyond(
        p=p,
        factor=mean,
        error=math.sqrt(variance / count) / mean if mean else 0.0,
        spread=math.sqrt(between) / mean if mean else 0.0,
        rehearsals=count,
    )
