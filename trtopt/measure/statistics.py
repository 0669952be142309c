"""Summaries of raw samples: pure functions on lists of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trtopt.records import Samples

MIN_COUNT = {50.0: 1, 90.0: 10, 95.0: 20, 99.0: 100, 99.9: 1000}
"""A percentile p needs 1/(1 - p/100) samples: one sample beyond it on average."""


@dataclass(frozen=True)
class Summary:
    """Of `count` values in milliseconds. A percentile that `count` does not support is None."""

    count: int
    mean: float
    minimum: float
    maximum: float
    cv: float
    """Standard deviation over mean."""
    percentiles: dict[float, float | None]

    @property
    def median(self) -> float:
        """The 50th percentile."""
        median = self.percentiles[50.0]
        assert median is not None
        return median


def percentile(values: Sequence[float], p: float) -> float | None:
    """The p-th percentile (0 to 100) by linear interpolation; None if there are too few values for it."""
    if len(values) < MIN_COUNT.get(p, 1) or not values:
        return None
    return float(np.percentile(np.asarray(values), p))


def summarise(values: Sequence[float]) -> Summary:
    """Summarise at least one value.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("no values to summarise")
    array = np.asarray(values)
    mean = float(array.mean())
    return Summary(
        count=len(values),
        mean=mean,
        minimum=float(array.min()),
        maximum=float(array.max()),
        cv=float(array.std() / mean) if mean else 0.0,
        percentiles={p: percentile(values, p) for p in MIN_COUNT},
    )


@dataclass(frozen=True)
class Throughput:
    """Measured, not inferred from latency: queries over the wall time from first start to last end."""

    queries_per_s: float
    samples_per_s: float


def throughput(samples: Samples, batch: int) -> Throughput:
    """Both rates of a pass; a query is one inference of `batch` samples."""
    queries = len(samples.start_ms) / (samples.wall_ms / 1e3)
    return Throughput(queries_per_s=queries, samples_per_s=queries * batch)
