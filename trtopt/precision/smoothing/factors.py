"""By how much to divide the channels of an activation x [rows, K] in front of weights W [K, N]; pure.

x·W = (x/s)·(s·W) for any s > 0: what is hard to quantise can be shared between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trtopt.precision.calibration.collect import ChannelValues

Factors: TypeAlias = "dict[int, float]"
"""What a channel is divided by; those that are not in it stay."""
Matrices: TypeAlias = "Sequence[NDArray[Any]]"
_LEAST = 1e-5
_STEPS = 20
"""Caps that are tried, a quarter of an octave apart."""
WORTHWHILE = 0.5
"""The largest share of the estimated error that may be left: less than halving it is not worth the change."""


def by_alpha(seen: ChannelValues, weights: Matrices, alpha: float) -> Factors:
    """s_j = max|x_j|^α / max|W_j|^(1−α). Source: Xiao et al. 2022, arXiv:2211.10438, equation 4."""
    rows = np.max([np.abs(matrix).max(axis=1) for matrix in weights], axis=0)
    peaks = np.maximum(seen.peaks, _LEAST)
    return _as_factors(peaks**alpha / np.maximum(rows, _LEAST) ** (1 - alpha))


def by_error(seen: ChannelValues, weights: Matrices) -> tuple[Factors, float] | None:
    """The channels above a cap divided down to it, with the cap at which INT8 is expected to err least.

    And the share of the error that is expected to remain; None if that is more than `WORTHWHILE`.
    """
    peaks = seen.peaks.astype(np.float64)
    if not peaks.any():
        return None
    trials = [np.maximum(1.0, peaks / (peaks.max() * 2 ** (-step / 4))) for step in range(_STEPS + 1)]
    errors = [_error(seen, weights, factors) for factors in trials]
    best = int(np.argmin(errors))
    left = errors[best] / errors[0] if errors[0] else 1.0
    return (_as_factors(trials[best]), left) if left <= WORTHWHILE else None


def _error(seen: ChannelValues, weights: Matrices, factors: NDArray[np.float64]) -> float:
    """Expected squared error of (x/s)·(s·W) in INT8, up to a factor that does not depend on s.

    Rounding to steps of a/127 errs by (a/127)²/12 on average; a is max|x/s| for the activation, the largest
    of its column for a weight. Errors of the activation pass through the weights, those of weights through
    the activation's mean squares.
    """
    step = float(np.max(seen.peaks / factors)) ** 2
    signal = float(np.sum(seen.mean_squares / factors**2))
    found = 0.0
    for matrix in weights:
        scaled = np.abs(matrix) * factors[:, None].astype(np.float32)
        found += step * float(np.vdot(scaled, scaled)) + signal * float(np.sum(scaled.max(axis=0) ** 2))
    return found


def _as_factors(factors: NDArray[Any]) -> Factors:
    """Four digits, as the calibration table keeps them, of those that are not 1."""
    return {int(index): float(f"{factors[index]:.4g}") for index in np.flatnonzero(factors != 1)}


def spread(factors: Mapping[int, float], channels: int) -> NDArray[np.float64]:
    """One factor for each channel."""
    whole = np.ones(channels)
    whole[list(factors)] = list(factors.values())
    return whole
