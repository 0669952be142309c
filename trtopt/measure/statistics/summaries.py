"""Summaries of raw samples: pure functions on lists of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trtopt.records import STAGES, BenchPoint, Samples

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)


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


def needed_for(p: float) -> int:
    """How many values the p-th percentile needs: 1/(1 - p/100), so that one lies beyond it on average.

    The median and below are given for any value at all.
    """
    return 1 if p <= 50 else round(1 / (1 - p / 100))


def percentile(values: Sequence[float], p: float) -> float | None:
    """The p-th percentile (0 to 100) by linear interpolation; None if there are too few values for it."""
    if len(values) < needed_for(p):
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
        percentiles={p: percentile(values, p) for p in PERCENTILES},
    )


@dataclass(frozen=True)
class Throughput:
    """Measured, not inferred from latency: queries over the wall time from first start to last end."""

    queries_per_s: float
    samples_per_s: float


def throughput(samples: Samples, batch: int) -> Throughput:
    """Both rates of a pass; a query is one inference of `batch` samples.

    Raises:
        ValueError: no queries.
    """
    if not samples.start_ms:
        raise ValueError("no queries in this pass")
    queries = len(samples.start_ms) / (samples.wall_ms / 1e3)
    return Throughput(queries_per_s=queries, samples_per_s=queries * batch)


def throughput_of(point: BenchPoint) -> Throughput | None:
    """Both rates of a point, of its throughput pass if there was one; None if no query counts."""
    samples = (point.throughput or point.latency).samples
    return throughput(samples, point.batch) if samples.start_ms else None


_LATENCIES = {"p50 ms": 50.0, "p90 ms": 90.0, "p99 ms": 99.0}
FIGURES = (*_LATENCIES, *STAGES, "queries/s", "samples/s")


def figures_of(point: BenchPoint) -> dict[str, float | None]:
    """A point's `FIGURES`, of stages the medians; None where no sample counts or nothing was timed."""
    latency_ms, rate = point.latency.samples.latency_ms, throughput_of(point)
    return {
        **{name: percentile(latency_ms, p) for name, p in _LATENCIES.items()},
        **{name: percentile(getattr(point.latency.staged, column), 50.0) for name, column in STAGES.items()},
        "queries/s": rate.queries_per_s if rate else None,
        "samples/s": rate.samples_per_s if rate else None,
    }
