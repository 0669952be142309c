"""Results over time for tests: what `trtopt bench` writes, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import numpy as np

from tests.support.examples import measurement, report
from trtopt.records import BenchReport, Samples

QUERIES = 200


def runs_of(levels_ms: Sequence[float], seed: int = 0) -> Iterator[BenchReport]:
    """A result a day at these levels, within about 0.3 %, each of another revision of the code."""
    noise = np.random.default_rng(seed)
    for number, level_ms in enumerate(levels_ms):
        luck = 0.003 * noise.standard_normal()
        yield _run(number, level_ms * np.exp(luck + 0.01 * noise.standard_normal(QUERIES)))


def _run(number: int, latencies_ms: np.ndarray) -> BenchReport:
    """A trustworthy result of one batch size, with one query at a time alone."""
    ends = np.cumsum(latencies_ms)
    none = [0.0] * QUERIES
    samples = Samples(
        start_ms=[0.0, *ends[:-1].tolist()],
        end_ms=ends.tolist(),
        enqueue_ms=none,
        gpu_compute_ms=none,
        h2d_ms=none,
        d2h_ms=none,
        inference_stream=[0] * QUERIES,
    )
    taken = msgspec.structs.replace(
        measurement(), mode="latency", samples=samples, staged=samples, warmups=samples,
        clocks=(), groups=(), untrustworthy=(), discarded=0, discarded_samples=None, failure=None,
    )  # fmt: skip
    whole = report()
    alone = {"throughput": None, "single_stream": None, "failure": None, "memory": None, "layers": None}
    at = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(days=number)
    return msgspec.structs.replace(
        whole,
        created=at.isoformat(),
        environment=msgspec.structs.replace(whole.environment, git_revision=f"{number:08x}"),
        points=(msgspec.structs.replace(whole.points[0], latency=taken, **alone),),
    )


def latency(result: BenchReport, **changed: Any) -> BenchReport:
    """The result with another latency pass."""
    (point,) = result.points
    taken = msgspec.structs.replace(point.latency, **changed)
    return msgspec.structs.replace(result, points=(msgspec.structs.replace(point, latency=taken),))
