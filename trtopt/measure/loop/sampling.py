"""The sampling loop: keeps streams busy and collects their queries until a criterion is met.

A minimal loop around the library's calls, next to it, shows what the sampling loop adds.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, groupby
from operator import itemgetter
from statistics import median
from typing import Protocol

import numpy as np

from trtopt.device.api import Device
from trtopt.measure.loop.inference_stream import InferenceStream, InFlightQuery, Query
from trtopt.measure.statistics.intervals import percentile_interval
from trtopt.records import STAGES, Samples

Finished = tuple[int, Query]
"""A query and the number of the inference stream that ran it."""


class Criterion(Protocol):
    """Gets each query's latency in milliseconds and decides when a pass may end."""

    def add(self, latency_ms: float) -> None:
        """One more query has finished."""

    def is_finished(self, elapsed_s: float) -> bool:
        """Whether the pass may end; called once per query, `elapsed_s` after the first was enqueued."""


class Until:
    """Ends when both a count and a time are reached."""

    def __init__(self, min_count: int, min_s: float = 0.0) -> None:
        self._left, self._min_s = min_count, min_s

    def add(self, latency_ms: float) -> None:
        """One more query has finished."""
        self._left -= 1

    def is_finished(self, elapsed_s: float) -> bool:
        """See `Criterion`."""
        return self._left <= 0 and elapsed_s >= self._min_s


def sample(device: Device, inference_streams: Sequence[InferenceStream], criterion: Criterion) -> Samples:
    """Keep every slot of every stream busy until the criterion is met, then let all of them finish."""
    began_s = device.now()
    finished: list[Finished] = []
    drive(device, inference_streams, criterion, finished)
    return as_samples(finished, began_s)


def drive(
    device: Device,
    inference_streams: Sequence[InferenceStream],
    criterion: Criterion,
    finished: list[Finished],
    *,
    timed: bool = False,
) -> None:
    """As `sample`; `timed` queries have their stages timed, see `InFlightQuery.start`.

    One host thread serves all streams: under Python's interpreter lock threads of their own gain nothing
    (benchmarks/trust). The criterion is evaluated between queries: with one query in flight its work is never
    timed. Queries come into `finished` in the order in which they were enqueued; those that had finished when
    a query failed are there too.
    """
    turns = [
        (number, inference_stream.slots[slot])
        for slot in range(len(inference_streams[0].slots))
        for number, inference_stream in enumerate(inference_streams)
    ]
    if len(turns) == 1:
        _one_at_a_time(device, turns[0][1], criterion, finished, timed)
        return
    began_s = device.now()
    rounds = cycle(turns)
    while True:
        number, slot = next(rounds)
        if slot.busy:
            query = slot.finish()
            finished.append((number, query))
            criterion.add((query.end_s - query.start_s) * 1e3)
        if criterion.is_finished(device.now() - began_s):
            break
        slot.start(timed=timed)
    for _ in turns:
        number, slot = next(rounds)
        if slot.busy:
            finished.append((number, slot.finish()))


def _one_at_a_time(
    device: Device,
    slot: InFlightQuery,
    criterion: Criterion,
    finished: list[Finished],
    timed: bool,
) -> None:
    """Little code between queries, too: what it evicts from the caches the next query waits for."""
    run, now = slot.run, device.now
    began_s = now()
    while not criterion.is_finished(now() - began_s):
        query = run(timed=timed)
        finished.append((0, query))
        criterion.add((query.end_s - query.start_s) * 1e3)


def as_samples(finished: Sequence[Finished], began_s: float, group: Sequence[int] = ()) -> Samples:
    """Columns, rounded to the nanosecond: no clock here resolves more, and result files stay small."""
    queries = [query for _, query in finished]
    return Samples(
        start_ms=[round((query.start_s - began_s) * 1e3, 6) for query in queries],
        end_ms=[round((query.end_s - began_s) * 1e3, 6) for query in queries],
        **{
            column: [round(ms, 6) for query in queries if (ms := getattr(query, column)) is not None]
            for column in STAGES.values()
        },
        inference_stream=[inference_stream for inference_stream, _ in finished],
        group=list(group),
    )


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Python's collector must not run inside the timed region."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# ── a minimal loop beside it ────────────────────────────────────────────────────────────────────────────


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
