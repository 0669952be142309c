"""A minimal loop around the library's calls, and what the sampling loop adds: its difference from that."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from statistics import median

import numpy as np

from trtopt.device.api import Device
from trtopt.measure.loop.inference_stream import InferenceStream, Query
from trtopt.measure.loop.sampling import Criterion, Finished
from trtopt.measure.statistics.intervals import percentile_interval
from trtopt.records import Samples


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
