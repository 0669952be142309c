"""Weights in a 16-bit type: what would overflow or vanish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.onnxio.weights import dtype_of, stretches


def largest(low: int) -> float:
    """The largest finite value of a 16-bit type."""
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype_of(low)).max)


def exact_integers(low: int) -> float:
    """The largest n such that all whole numbers up to n have a form in a 16-bit type."""
    import ml_dtypes

    return float(2 ** (ml_dtypes.finfo(dtype_of(low)).nmant + 1))


def _rounded_to_zero(low: int) -> float:
    """The largest value that rounds to 0 in a 16-bit type: half its smallest one, where ties go to even."""
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype_of(low)).smallest_subnormal) / 2


@dataclass(frozen=True)
class Fit:
    """How a weight fits: its largest finite |x|, how many of its non-zero values become 0, of how many."""

    largest: float
    vanishing: int
    nonzero: int

    @property
    def vanishes(self) -> bool:
        """Whether nothing but zeros would be left of a weight that is not all zero."""
        return 0 < self.nonzero == self.vanishing


def fit_of(array: NDArray[Any], low: int) -> Fit:
    """How the FP32 values of `array` fit into the type `low`."""
    peak = 0.0
    vanishing = nonzero = 0
    tiny = _rounded_to_zero(low)
    for part in stretches(array):
        sizes = np.abs(part)
        if not np.isfinite(sizes.max()):
            sizes = sizes[np.isfinite(sizes)]
        peak = max(peak, float(sizes.max(initial=0.0)))
        filled = int(np.count_nonzero(sizes))
        nonzero += filled
        vanishing += filled - int(np.count_nonzero(sizes > tiny))
    return Fit(peak, vanishing, nonzero)


def rounding_error(array: NDArray[Any], low: int) -> float:
    """The largest relative error that rounding to `low` causes in a value; 1 for one that vanishes."""
    sizes = np.abs(np.asarray(array, np.float64).reshape(-1))
    sizes = sizes[sizes > 0]
    with np.errstate(over="ignore"):
        rounded = sizes.astype(dtype_of(low)).astype(np.float64)
    return float(np.abs(rounded / sizes - 1).max(initial=0.0))
