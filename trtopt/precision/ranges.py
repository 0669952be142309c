"""Ranges of tensors: a histogram of what each takes on, and the methods that make a range of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 2048
_CHUNK = 1 << 15  # values at a time, so that the scratch arrays stay in the cache
_LEAST_EXPONENT = -100  # below it the float32 factor from values to bins would overflow


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
            raise ValueError("not all values are finite")
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


# The methods: from a histogram to amax, the largest |x| that a range has.


LEVELS = 127
"""INT8 magnitudes: the scale is amax / 127, so that both signs reach amax."""
_START = 128  # KL starts where each of its levels has a bin of its own
_MSE_STEP = 8  # bins between candidate thresholds


def percentile(seen: Histogram, percent: float) -> float:
    """The |x| that `percent` of all values, zeros included, do not exceed; linear inside a bin."""
    if not seen.peak:
        return 0.0
    below = seen.zeros + np.cumsum(seen.counts)
    wanted = percent / 100 * seen.total
    if wanted <= seen.zeros:
        return seen.peak  # all but zeros would be clipped
    index = int(np.searchsorted(below, wanted))
    before = float(below[index] - seen.counts[index])
    inside = (wanted - before) / float(seen.counts[index])
    return min((index + inside) * seen.width, seen.peak)


def mse(seen: Histogram) -> float:
    """The amax with the least mean squared error of rounding and clipping, by the centres of the bins."""
    if not seen.peak:
        return 0.0
    used = seen.counts > 0
    values, counts = ((np.arange(BINS) + 0.5) * seen.width)[used], seen.counts[used]
    edges = np.arange(_MSE_STEP, BINS + 1, _MSE_STEP) * seen.width
    candidates = np.append(edges[edges < seen.peak], seen.peak)
    errors = [_squared_error(values, counts, amax) for amax in candidates]
    return float(candidates[int(np.argmin(errors))])


def _squared_error(values: NDArray[Any], counts: NDArray[Any], amax: float) -> float:
    scale = amax / LEVELS
    rounded = np.minimum(np.rint(values / scale), LEVELS) * scale
    return float(np.dot(counts, (values - rounded) ** 2))


def entropy(seen: Histogram) -> float:
    """The amax that loses least information: minimal KL(P‖Q) over all thresholds from bin 128 on, stride 1.

    P is the histogram up to the threshold with all that lies beyond added to its last bin; Q the same without
    what lies beyond, poured into 128 levels and spread evenly over the bins of each level that are not empty.
    Zeros are left out: they are exact whatever the scale. Source: Migacz, "8-bit Inference with TensorRT",
    GTC 2017. With prefix sums every threshold costs 128 terms, not its number of bins: a bin's share of
    KL is p·ln p − p·ln q, and q is constant over a level.
    """
    if not seen.peak:
        return 0.0
    counts = seen.counts.astype(np.float64)
    divergences = _divergences(counts)
    best = BINS - int(np.argmin(divergences[::-1]))  # of equal ones the largest: it clips less
    return min(best * seen.width, seen.peak)


def _divergences(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """KL for a threshold after each number of bins; infinite below `_START` and where Q lacks what P has."""
    inside = np.concatenate([[0.0], np.cumsum(counts)])
    filled = np.concatenate([[0.0], np.cumsum(counts > 0)])
    logs = np.concatenate([[0.0], np.cumsum(_times_log(counts))])
    total = inside[-1]
    bins, edges = np.arange(_START, BINS + 1), _level_edges()
    mass, spread = np.diff(inside[edges], axis=1), np.diff(filled[edges], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_q = np.where(mass > 0, np.log(mass / np.maximum(spread, 1)), 0.0)
        last, beyond = counts[bins - 1], total - inside[bins]
        p_log_p = logs[bins] - _times_log(last) + _times_log(last + beyond)
        p_log_q = (mass * log_q).sum(axis=1) + beyond * log_q[:, -1]
        found = (p_log_p - p_log_q) / total + np.log(inside[bins] / total)
    found[(inside[bins] == 0) | ((last == 0) & (beyond > 0))] = np.inf
    return np.concatenate([np.full(_START, np.inf), found])[1:]


@cache
def _level_edges() -> NDArray[np.int64]:
    """[thresholds, levels + 1]: the first bin of each level."""
    return np.arange(_START + 1) * np.arange(_START, BINS + 1)[:, None] // _START


def _times_log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """x·ln x, and 0 for 0."""
    return values * np.log(np.where(values > 0, values, 1.0))


METHODS: Mapping[str, Callable[[Histogram], float]] = {
    "max": attrgetter("peak"),
    "percentile-99.9": partial(percentile, percent=99.9),
    "percentile-99.99": partial(percentile, percent=99.99),
    "percentile-99.999": partial(percentile, percent=99.999),
    "mse": mse,
    "entropy": entropy,
}
"""Every method by its name on the command line."""
MAX = "max"
AUTO = "auto"
"""The method with the least error of the outputs on samples that were held out."""


def all_amax(seen: Histogram) -> dict[str, float]:
    """The amax of each method; 0 for a tensor that is all zero."""
    return {name: method(seen) for name, method in METHODS.items()}
