"""What one pass over the data fills: a histogram for every tensor that is to be quantised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.errors import DataError
from trtopt.precision.calibration.histogram import Histogram, NotFinite


class Ranges:
    """Histograms by tensor. Memory: 16 KiB a tensor, whatever the number of samples."""

    def __init__(self, tensors: Sequence[str]) -> None:
        self.seen = {name: Histogram() for name in tensors}

    def visit(self, name: str, values: NDArray[Any], samples: Sequence[int]) -> None:
        """Take in one batch of a tensor; `samples` are the numbers of the samples in it."""
        try:
            self.seen[name].add(values)
        except NotFinite as error:
            raise _not_finite(name, error.index, len(np.atleast_1d(values)), samples) from None


@dataclass(frozen=True)
class ChannelValues:
    """What the channels of a tensor take on: the largest |x| of each, and the mean of its x²."""

    peaks: NDArray[np.float32]
    mean_squares: NDArray[np.float64]


class PerChannel:
    """What each channel along the last axis takes on, by tensor. Memory: some numbers a channel."""

    def __init__(self) -> None:
        self._peaks: dict[str, NDArray[np.float32]] = {}
        self._squares: dict[str, NDArray[np.float64]] = {}
        self._rows: dict[str, int] = {}

    def visit(self, name: str, values: NDArray[Any], first: int) -> None:
        """Take in one batch of a tensor; its first sample is number `first`."""
        rows = values.reshape(-1, values.shape[-1])
        peaks = np.abs(rows).max(axis=0, initial=0).astype(np.float32)
        if not np.isfinite(peaks).all():
            check_finite(name, values, range(first, first + len(values)))
        squares = np.einsum("ij,ij->j", rows, rows, dtype=np.float64)
        self._peaks[name] = np.maximum(self._peaks.get(name, 0), peaks)
        self._squares[name] = self._squares.get(name, 0) + squares
        self._rows[name] = self._rows.get(name, 0) + len(rows)

    def values(self, name: str) -> ChannelValues:
        """Of one tensor, over all batches."""
        return ChannelValues(self._peaks[name], self._squares[name] / max(self._rows[name], 1))


@dataclass(frozen=True)
class SecondMoments:
    """The mean of xᵀ·x [K, K] over `rows` rows x of an activation."""

    mean: NDArray[np.float32]
    rows: int


ROWS_AT_ONCE = 512
"""Of an activation in one product: a sample's 128 alone would spend most of the time on adding up."""


class Products:
    """How channels along the last axis move together, by tensor: the same bits however rows come in batches.

    Memory: 4·K·(K + `ROWS_AT_ONCE`) bytes for K channels. Sums beyond FP32's range become infinite or NaN.
    """

    def __init__(self) -> None:
        self._sums: dict[str, NDArray[np.float32]] = {}
        self._rows: dict[str, int] = {}
        self._waiting: dict[str, NDArray[np.float32]] = {}

    def visit(self, name: str, values: NDArray[Any], first: int) -> None:
        """Take in one batch of a tensor; its first sample is number `first`."""
        check_finite(name, values, range(first, first + len(values)))
        rows = values.reshape(-1, values.shape[-1])
        if name not in self._waiting:
            self._waiting[name] = np.empty((ROWS_AT_ONCE, rows.shape[1]), np.float32)
            self._rows[name] = 0
        waiting = self._waiting[name]
        while len(rows):
            place = self._rows[name] % ROWS_AT_ONCE
            taken, rows = np.split(rows, [ROWS_AT_ONCE - place])
            waiting[place : place + len(taken)] = taken
            self._rows[name] += len(taken)
            if place + len(taken) == ROWS_AT_ONCE:
                self._sums[name] = self._with(name, waiting)

    def _with(self, name: str, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        with np.errstate(over="ignore", invalid="ignore"):
            product: NDArray[np.float32] = rows.T @ rows
            if name in self._sums:
                product += self._sums[name]
        return product

    def together(self, names: Sequence[str]) -> SecondMoments:
        """Over all batches of these tensors, which have as many channels as one another."""
        rows = sum(self._rows[name] for name in names)
        whole, *others = (
            self._with(name, self._waiting[name][: self._rows[name] % ROWS_AT_ONCE]) for name in names
        )
        whole /= np.float32(rows)
        for other in others:
            whole += other / np.float32(rows)
        return SecondMoments(whole, rows)


_REMEDY = "take that sample out of the data, or find out why the model overflows on it"


def check_finite(name: str, values: NDArray[Any], samples: Sequence[int], remedy: str = _REMEDY) -> None:
    """Refuse NaN and infinity in one batch of a tensor; `samples` are the numbers of the samples in it."""
    finite = np.atleast_1d(np.isfinite(values))
    if not finite.all():
        row = int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))
        raise _not_finite(name, row, len(finite), samples, remedy)


def _not_finite(name: str, row: int, rows: int, samples: Sequence[int], remedy: str = _REMEDY) -> DataError:
    which = f"sample {samples[0]}"
    if rows == len(samples):
        which = f"sample {samples[row]}"
    elif len(samples) > 1:  # the first axis is not that of the samples
        which = f"one of the samples {samples[0]} to {samples[-1]}"
    return DataError(f"tensor {name!r} is not finite (NaN or infinity) with {which}", remedy)
