"""Serving tried at a load well below what it can do: how much longer batches take, and who wakes late."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from trtopt.records import BatchPolicy, Record
from trtopt.runtime.backlog import Request
from trtopt.runtime.batcher import DynamicBatcher
from trtopt.runtime.pool import EnginePool
from trtopt.runtime.punctual import wait_until, wake_on_time

SECONDS, LEAST, MOST = 3.0, 20, 10_000
"""How long requests are sent, and how many there are at least and at most."""

RARE = 70.0
"""Requests a second: where fewer come, workers sleep as soundly at that rate, and 200 are seen in time."""

_SHARE = 0.7
"""Of what workers can do, at most: beyond, what is seen is how long the queue got."""

Sample = dict[str, NDArray[np.generic]]


class Rehearsed(Record, frozen=True, kw_only=True):
    """What was seen, in milliseconds.

    `batches`: of each its requests, how many batches ran when it began, itself included, and how long its
    worker was at it. `wake_ms`: from a request's coming to the begin of its batch, where a worker was idle.
    `late_ms`: how late a request was handed over, of each.
    """

    batches: list[tuple[int, int, float]]
    wake_ms: list[float]
    late_ms: list[float]


def rehearsal_rate(asked: float | None, most: float) -> float:
    """Requests a second to rehearse with, for workers that can do `most`."""
    bound = _SHARE * most
    return bound if asked is None else min(max(asked, RARE), bound)


def rehearse(pool: EnginePool, sample: Sample, rate: float, max_batch: int) -> Rehearsed:
    """Serve requests that come at random times, `rate` a second on average (Poisson), with no delay."""
    count = int(min(MOST, max(LEAST, rate * SECONDS)))
    at_s = np.cumsum(RandomState(0).exponential(1 / rate, count)).tolist()
    batcher = _Watched(pool, BatchPolicy(max_batch=max_batch, max_delay_ms=0.0, max_waiting=count))
    late_ms: list[float] = []
    wake_on_time()
    with batcher:
        begin_s = time.perf_counter() + 0.01
        for due_s in at_s:
            wait_until(begin_s + due_s)
            late_ms.append((time.perf_counter() - begin_s - due_s) * 1e3)
            batcher.submit(sample)
    return told_of(batcher.seen, pool.workers, late_ms)


class _Watched(DynamicBatcher):
    """Notes of every batch its requests, when the first of them came, its begin and its end."""

    def __init__(self, pool: EnginePool, policy: BatchPolicy) -> None:
        self.seen: list[tuple[int, float, float, float]] = []
        self._seen_by = threading.Lock()
        super().__init__(pool, policy)

    def _run(self, batch: Sequence[Request]) -> None:
        start_s = time.perf_counter()
        super()._run(batch)
        with self._seen_by:
            self.seen.append((len(batch), batch[0].arrived_s, start_s, time.perf_counter()))


def told_of(
    seen: Sequence[tuple[int, float, float, float]], workers: int, late_ms: Sequence[float]
) -> Rehearsed:
    """Judge batches, each its requests and seconds of the first one's coming, of its begin and of its end."""
    ordered = sorted(seen, key=lambda one: one[2])
    starts, ends = (np.array([one[at] for one in ordered]) for at in (2, 3))
    batches: list[tuple[int, int, float]] = []
    wake_ms: list[float] = []
    for index, (requests, came_s, start_s, end_s) in enumerate(ordered):
        running = 1 + int((ends[:index] > start_s).sum())
        batches.append((requests, running, (end_s - start_s) * 1e3))
        if int(((starts <= came_s) & (ends > came_s)).sum()) < workers:
            wake_ms.append((start_s - came_s) * 1e3)
    return Rehearsed(batches=batches, wake_ms=wake_ms, late_ms=list(late_ms))
