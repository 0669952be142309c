"""Weights on a grid, so that what a layer computes errs little rather than its weights; pure.

Source: Frantar et al. 2022, arXiv:2210.17323 (GPTQ): input channel after input channel is rounded, and those
behind it take up its error as far as the channels move together, x·W being what counts.

With H = E[xᵀx] = R·Rᵀ, R upper triangular, and E = W − Ŵ the expected squared error of x·W is ‖Rᵀ·E‖², whose
row i is R[i, i]·(E[i] + Σ A[i, j]·E[j], j < i), A[i, j] = R[j, i]/R[i, i]. So row i is rounded from
W[i] + Σ A[i, j]·E[j]. That is the paper's update through the Cholesky factor of H⁻¹, without the inverse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trtopt.precision.calibration.collect import SecondMoments
from trtopt.precision.placement.plan import Precision
from trtopt.precision.qdq.quantised_values import RANGE

FindScale: TypeAlias = "Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float32]]"
"""The scale of each column [N] for rows [≤ block, N], whose errors count by a weight each [≤ block]."""
DAMPING = 0.01
"""Added to H's diagonal, as a share of its mean."""
PER_CHANNEL = 0.3
"""Added besides, times channels a row: what moves together in few rows may not elsewhere."""


def rounded(
    weight: NDArray[Any], seen: SecondMoments, precision: Precision, block: int, scale: FindScale
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """`weight` [K, N] moved to its grid for inputs with the second moments [K, K]; and the grid's steps.

    `scale` is called at the beginning of each `block` rows for the scales of its columns, with the rows as
    the errors of those before leave them. Returns the new weight [K, N] and the scales [⌈K/block⌉, N].
    """
    pull, importance = _triangle(seen)
    old = weight.astype(np.float32)
    error = np.zeros_like(old)
    low, high = RANGE[precision]
    scales = []
    for first in range(0, len(old), block):
        end = min(first + block, len(old))
        rows = old[first:end] + pull[first:end, :first] @ error[:first]
        steps = scale(rows, importance[first:end])
        for i, row in enumerate(rows, first):
            wanted = row + pull[i, first:i] @ error[first:i]
            error[i] = old[i] - np.clip(np.rint(wanted / steps), low, high) * steps
        scales.append(steps)
    return old - error, np.stack(scales)


def _triangle(seen: SecondMoments) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A below its diagonal [K, K], and by how much the squared error of each row counts [K].

    Channels that are always zero neither take up errors nor hand any on.
    """
    damped = seen.mean.astype(np.float64)
    mean = damped.diagonal().mean() or 1.0
    damping = DAMPING + PER_CHANNEL * len(damped) / seen.rows
    damped[np.diag_indices_from(damped)] += damping * mean
    upper = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
    diagonal = upper.diagonal()
    pull = np.ascontiguousarray((upper / diagonal).T, np.float32)
    return pull, np.asarray(np.square(diagonal / diagonal.max()), np.float32)
