"""Minimal loops around the library's calls, and what the sampling loop adds: its difference from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from statistics import median

import numpy as np

from trtopt.device.api import Device
from trtopt.measure.loop.inference_stream import Calls, InferenceStream, Query
from trtopt.measure.loop.sampling import Criterion, Finished, as_samples
from trtopt.measure.statistics.intervals import percentile_interval
from trtopt.records import STAGES, Samples

_PROBE = 5
"""Queries from whose time the number that fills a block is estimated."""


def run_bare(
    device: Device, inference_stream: InferenceStream, criterion: Criterion, finished: list[Finished]
) -> None:
    """One query in flight: the clock before the launch, and after the wait."""
    calls, wait = inference_stream.bare()
    now = device.now
    began_s = now()
    while not criterion.is_finished(now() - began_s):
        start_s = now()
        for call in calls:
            call()
        wait()
        end_s = now()
        finished.append((0, Query(start_s, end_s)))
        criterion.add((end_s - start_s) * 1e3)


def bare_latency(device: Device, inference_stream: InferenceStream, criterion: Criterion) -> Samples:
    """The queries of `run_bare`."""
    began_s, finished = device.now(), list[Finished]()
    run_bare(device, inference_stream, criterion, finished)
    return as_samples(finished, began_s)


def bare_throughput(
    device: Device, inference_streams: Sequence[InferenceStream], min_queries: int, block_s: float
) -> Samples:
    """Queries handed over one after the other for about `block_s`, and waited for once, at the end."""
    loops = [inference_stream.bare() for inference_stream in inference_streams]
    probe_s = _hand_over(device, loops, _PROBE)
    count = max(min_queries, round(block_s / probe_s * _PROBE) if probe_s else min_queries)
    took_ms = _hand_over(device, loops, count) * 1e3
    return host_samples([0.0] * count, [took_ms] * count)


def _hand_over(device: Device, loops: Sequence[tuple[Calls, Callable[[], object]]], count: int) -> float:
    """Seconds for `count` queries, handed to the streams in turn."""
    queries = [loops[index % len(loops)][0] for index in range(count)]
    began_s = device.now()
    for calls in queries:
        for call in calls:
            call()
    for _, wait in loops:
        wait()
    return device.now() - began_s


def host_samples(starts: list[float], ends: list[float]) -> Samples:
    """Of queries of which only these times are known, in milliseconds."""
    return Samples(
        start_ms=[round(value, 6) for value in starts],
        end_ms=[round(value, 6) for value in ends],
        inference_stream=[],
        group=[],
        **{column: [] for column in STAGES.values()},
    )


NOTABLE_SHARE = 0.01
"""Of the median latency."""


@dataclass(frozen=True)
class LoopOverhead:
    """What the loop adds to a query, the least that it may be at 95 %, and the median latency."""

    added_ms: float
    least_ms: float | None
    latency_ms: float

    @property
    def notes(self) -> list[str]:
        """One if it certainly adds more than a hundredth."""
        if self.least_ms is None or self.least_ms <= NOTABLE_SHARE * self.latency_ms:
            return []
        share = self.added_ms / self.latency_ms
        return [
            f"the loop adds {self.added_ms * 1e3:.1f} µs ({share:.1%} of p50) to what a bare loop around the "
            "library's own call takes"
        ]


def loop_overhead(samples: Samples, bare: Samples) -> LoopOverhead | None:
    """From each group's bare queries and as many samples right before them; None without any.

    Neighbours feel the same machine: their difference is the loop's, whatever else wanders.
    """
    ends, latency = np.asarray(samples.end_ms), np.asarray(samples.latency_ms)
    differences = []
    rows = zip(bare.group or [0] * len(bare.start_ms), bare.start_ms, bare.latency_ms, strict=True)
    for _, block in groupby(rows, key=itemgetter(0)):
        queries = list(block)
        last = int(np.searchsorted(ends, queries[0][1], side="right"))
        before = latency[max(0, last - len(queries)) : last]
        if len(before):
            differences.append(float(np.median(before)) - median(ms for _, _, ms in queries))
    if not differences:
        return None
    interval = percentile_interval(differences, 50.0)
    return LoopOverhead(interval.value, interval.low, float(np.median(latency)))
