"""The sampling loop: keeps lanes busy and collects their queries until a criterion is met."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from trtopt.device.api import Device
from trtopt.measure.lane import Lane, Query, Slot
from trtopt.records import Samples


class Criterion(Protocol):
    """Hears each query's latency in milliseconds and says when a pass may end."""

    def add(self, latency_ms: float) -> None:
        """One more query has finished."""

    def is_finished(self, elapsed_s: float) -> bool:
        """Whether the pass may end; asked once a query, `elapsed_s` after its first one was handed over."""


def sample(device: Device, lanes: Sequence[Lane], criterion: Criterion) -> Samples:
    """Keep every slot of every lane busy until the criterion is met, then let all of them finish.

    The criterion is asked between a slot's queries: with one query in flight its work is never timed.
    """
    began_s = device.now()
    finished: list[tuple[int, Query]] = []
    rounds = _round_robin(lanes)
    while True:
        index, slot = next(rounds)
        if slot.busy:
            query = slot.finish()
            finished.append((index, query))
            criterion.add((query.end_s - query.start_s) * 1e3)
        if criterion.is_finished(device.now() - began_s):
            break
        slot.start()
    for _ in range(sum(len(lane.slots) for lane in lanes)):
        index, slot = next(rounds)
        if slot.busy:
            finished.append((index, slot.finish()))
    return as_samples(finished, began_s)


def _round_robin(lanes: Sequence[Lane]) -> Iterator[tuple[int, Slot]]:
    depth = len(lanes[0].slots)
    while True:
        for slot in range(depth):
            for index, lane in enumerate(lanes):
                yield index, lane.slots[slot]


def as_samples(finished: list[tuple[int, Query]], began_s: float) -> Samples:
    """Columns, rounded to the nanosecond: no clock here resolves more, and result files stay small."""
    queries = [query for _, query in finished]
    return Samples(
        start_ms=[round((query.start_s - began_s) * 1e3, 6) for query in queries],
        end_ms=[round((query.end_s - began_s) * 1e3, 6) for query in queries],
        enqueue_ms=[round(query.enqueue_ms, 6) for query in queries],
        gpu_compute_ms=[round(query.gpu_compute_ms, 6) for query in queries],
        h2d_ms=[round(query.h2d_ms, 6) for query in queries if query.h2d_ms is not None],
        d2h_ms=[round(query.d2h_ms, 6) for query in queries if query.d2h_ms is not None],
        lane=[lane for lane, _ in finished],
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
