"""A histogram of |x| that grows with what it is shown, in memory that does not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 2048
_CHUNK = 1 << 15  # values at a time, so that the scratch arrays stay in the cache
_LEAST_EXPONENT = -100  # below it the float32 factor from values to bins would overflow


class NotFinite(ValueError):
    """A NaN or an infinity among the values; `index` is where along the first axis the first one lies."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Histogram:
    """How often which |x| > 0 was seen, in `BINS` equal bins from 0 to `limit`; zeros are counted apart.

    `limit` is the smallest power of two above the largest |x| so far. When it doubles, neighbouring bins
    are added up, which is exact: the counts do not depend on how the data was cut into batches, nor on
    their order. At least half of the bins lie below the peak.
    """

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(BINS, np.int64)
        self.limit = 0.0
        self.peak = 0.0
        self.zeros = 0

    @property
    def width(self) -> float:
        """The width of a bin."""
        return self.limit / BINS

    @property
    def total(self) -> int:
        """How many values were counted."""
        return self.zeros + int(self.counts.sum())

    def add(self, values: NDArray[Any]) -> None:
        """Count all elements of `values`, of any shape and floating type."""
        if not values.size:
            return
        flat = np.ravel(values, order="K").astype(np.float32, copy=False)
        peak = max(float(flat.max()), -float(flat.min()))
        if not math.isfinite(peak):
            rows = np.isfinite(np.atleast_1d(values).reshape(max(len(np.atleast_1d(values)), 1), -1))
            raise NotFinite(int(np.argmin(rows.all(axis=1))))
        zeros = flat.size - int(np.count_nonzero(flat))
        self.zeros += zeros
        if peak == 0.0:
            return
        self._make_room_for(peak)
        factor = np.float32(BINS / self.limit)
        scratch, indices = np.empty(_CHUNK, np.float32), np.empty(_CHUNK, np.int64)
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK]
            scaled, bins = scratch[: part.size], indices[: part.size]
            np.multiply(part, factor, out=scaled)
            np.abs(scaled, out=scaled)
            np.copyto(bins, scaled, casting="unsafe")
            self.counts += np.bincount(bins, minlength=BINS)
        self.counts[0] -= zeros

    def _make_room_for(self, peak: float) -> None:
        self.peak = max(self.peak, peak)
        if peak < self.limit:
            return
        exponent = max(math.frexp(peak)[1], _LEAST_EXPONENT)
        if self.limit:
            doublings = min(exponent + 1 - math.frexp(self.limit)[1], BINS.bit_length() - 1)
            sums = self.counts.reshape(-1, 1 << doublings).sum(axis=1)
            self.counts[:] = 0
            self.counts[: sums.size] = sums
        self.limit = math.ldexp(1.0, exponent)
