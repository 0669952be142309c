"""How far trial runs were from simulations of their own arrivals. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtopt.measure.statistics.summaries import needed_for
from trtopt.records import Beyond
from trtopt.serving.planning.prediction import percentile

_ENOUGH, _GAP = 4, 0.926
"""Dixon's Q at 99 % for four values: where the slowest of four is farther from the next than this share of
their range, it is none of them (Rorabacher, Analytical Chemistry 63, 1991, table 1).
"""

_MOST = 1000.0
"""Times what was simulated; as good as never, which a file cannot say."""


@dataclass(frozen=True)
class TrialError:
    """Milliseconds of each request in the order of arrival, infinite without an answer: measured, and in
    simulations of the same arrivals.
    """

    took_ms: NDArray[np.float64]
    simulated_ms: Sequence[NDArray[np.float64]]


def beyond(trials: Sequence[TrialError], percentiles: Sequence[float]) -> tuple[Beyond, ...]:
    """Measured over simulated latency, at the percentiles for which there are enough requests, ascending."""
    found = []
    for p in sorted(set(percentiles)):
        each = [one for trial in trials if (one := _beyond(trial, p)) is not None]
        if each:
            found.append(_together(p, [factor for factor, _ in each], [chance for _, chance in each]))
    return tuple(found)


def held_up(trials: Sequence[TrialError], percentiles: Sequence[float]) -> tuple[int, Beyond] | None:
    """The one of four or more that the machine held up, at the highest percentile that all have."""
    for p in sorted(set(percentiles), reverse=True):
        each = [_beyond(trial, p) for trial in trials]
        factors = [one[0] for one in each if one is not None]
        if len(factors) == len(each):
            slowest = int(np.argmax(factors))
            is_apart = len(factors) >= _ENOUGH and _is_apart(sorted(factors))
            return (slowest, Beyond(p=p, factor=factors[slowest])) if is_apart else None
    return None


def _is_apart(ascending: Sequence[float]) -> bool:
    """Whether the last is none of the others."""
    return ascending[-1] - ascending[-2] > _GAP * (ascending[-1] - ascending[0])


def _beyond(trial: TrialError, p: float) -> tuple[float, float] | None:
    """The factor of one trial run, and its variance by chance according to simulations.

    Of all its requests: the slowest belong to the percentile, and where every process stalls a little, a part
    of it without a stall would promise too much.
    """
    if len(trial.took_ms) < needed_for(p):
        return None
    simulated_ms = np.array([percentile(run, p) for run in trial.simulated_ms])
    usual_ms = simulated_ms.mean()
    if not np.isfinite(usual_ms):
        return None
    factor = min(percentile(trial.took_ms, p) / float(usual_ms), _MOST)
    return factor, factor**2 * float((simulated_ms / usual_ms).var(ddof=1))


def _together(p: float, factors: Sequence[float], chances: Sequence[float]) -> Beyond:
    """Of processes that differ from one another, and by chance.

    Their median: what is predicted is a typical run, and one or two of them may have stalled.
    """
    count, median = len(factors), float(np.median(factors))
    variance = float(np.var(factors, ddof=1)) if count > 1 else 0.0
    between = max(0.0, variance - float(np.mean(chances)))
    return Beyond(
        p=p,
        factor=median,
        error=math.sqrt(variance / count) / median if median else 0.0,
        spread=math.sqrt(between) / median if median else 0.0,
        trials=count,
    )
