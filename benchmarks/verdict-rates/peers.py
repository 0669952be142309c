"""The rules of the field's tools, as short functions of two runs' latencies: is B called slower, or faster?

Each is the tool's own default on what its users give it; none is told of the noise. The numbers of runs and
their lengths are those of the two files that `trtopt compare` gets.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from trtopt.measure.statistics.intervals import student

Latencies = NDArray[np.float64]
RUNS = 10
"""benchstat asks for ten runs or more."""

_NORMAL = NormalDist()


def hyperfine(a: Latencies, b: Latencies) -> int:
    """`scripts/welch_ttest.py`: Welch's t-test on all timings, p < 0.05."""
    error = math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    return _sign(float(b.mean() - a.mean()), student(math.inf) * error)


def criterion(a: Latencies, b: Latencies) -> int:
    """p < 0.05, and the 95 % interval of the change of the mean wholly beyond ±1 %.

    Of thousands of values the bootstrap's interval is the normal one.
    """
    if not hyperfine(a, b):
        return 0
    variances = (float(side.var()) / len(side) / float(side.mean()) ** 2 for side in (a, b))
    half = student(math.inf) * math.sqrt(sum(variances))
    change = math.log(float(b.mean() / a.mean()))
    return int(change - half > math.log(1.01)) - int(change + half < math.log(0.99))


def benchstat(a: Latencies, b: Latencies) -> int:
    """Mann and Whitney's U on ten means a side, p < 0.05."""
    ours, theirs = (np.array([part.mean() for part in np.array_split(side, RUNS)]) for side in (a, b))
    above = float((theirs[:, None] > ours).sum() + 0.5 * (theirs[:, None] == ours).sum())
    return _sign(above - RUNS**2 / 2, student(math.inf) * math.sqrt(RUNS**2 * (2 * RUNS + 1) / 12))


def nvbench_robust(a: Latencies, b: Latencies) -> int:
    """`nvbench-compare-robust`: a gap of 0.5 % between the intervals from minimum to third quartile."""
    ours, theirs = ((side.min(), np.percentile(side, 75)) for side in (a, b))
    return int(theirs[0] > ours[1] * 1.005) - int(theirs[1] * 1.005 < ours[0])


def bencher(history: Latencies, b: Latencies) -> int:
    """The t-test threshold with a boundary of 0.99 each way: B's mean against those of earlier runs."""
    freedom = len(history) - 1
    bound = student(freedom) * _NORMAL.inv_cdf(0.99) / _NORMAL.inv_cdf(0.975)
    return _sign(float(b.mean() - history.mean()), bound * float(history.std(ddof=1)))


def _sign(difference: float, bound: float) -> int:
    return int(difference > bound) - int(difference < -bound)
