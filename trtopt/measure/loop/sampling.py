"""The sampling loop: keeps streams busy and collects their queries until a criterion is met."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Protocol

from trtopt.device.api import Device
from trtopt.measure.loop.inference_stream import InferenceStream, InFlightQuery, Query
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
