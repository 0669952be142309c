"""Serving tried at a load well below what it can do: how much longer batches take, and who wakes late."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from trtopt.errors import DeviceError
from trtopt.records import BatchPolicy, Record
from trtopt.runtime.backlog import Request
from trtopt.runtime.batcher import DynamicBatcher
from trtopt.runtime.pool import EnginePool
from trtopt.runtime.punctual import on_schedule

SECONDS, LEAST, MOST = 3.0, 20, 10_000
"""How long requests are sent, and how many there are at least and at most."""

RARE = 70.0
"""Requests a second: where fewer come, workers sleep as soundly at that rate, and 200 are seen in time."""

_SHARE, _LITTLE = 0.7, 0.1
"""Of what workers can do: the most, for beyond, what is seen is a queue; and what leaves them idle."""

Sample = dict[str, NDArray[np.generic]]


class Rehearsed(Record, frozen=True, kw_only=True):
    """What was seen, in milliseconds.

    `batches`: of each its requests, how many batches ran when it began, itself included, and how long its
    worker was at it, until it began the next one if that was waiting. `wake_ms`: from a request's coming to
    the begin of its batch, where a worker was idle. `late_ms`: how late a request was handed over, of each.
    """

    batches: list[tuple[int, int, float]]
    wake_ms: list[float]
    late_ms: list[float]


def rehearsal_rate(asked: float | None, most: float) -> float:
    """Requests a second to rehearse with, for workers that can do `most`."""
    bound = _SHARE * most
    return bound if asked is None else min(max(asked, min(RARE, _LITTLE * most)), bound)


def rehearse(pool: EnginePool, sample: Sample, rate: float, max_batch: int) -> Rehearsed:
    """Serve requests that come at random times, `rate` a second on average (Poisson), with no delay."""
    count = int(min(MOST, max(LEAST, rate * SECONDS)))
    at_s = np.cumsum(RandomState(0).exponential(1 / rate, count)).tolist()
    batcher = _Watched(pool, BatchPolicy(max_batch=max_batch, max_delay_ms=0.0, max_waiting=count))
    late_ms: list[float] = []
    with batcher:
        for late in on_schedule(at_s, time.perf_counter() + 0.01):
            late_ms.append(late)
            batcher.submit(sample)
    if failed := batcher.statistics().failed:
        raise DeviceError(
            f"{failed} of {count} requests failed as they came at random",
            "see whether the engines run at all: trtopt bench",
        )
    return told_of(batcher.seen, pool.workers, late_ms)


class Seen(NamedTuple):
    """A batch: its requests, when the first of them came, its begin and end in seconds, and its worker."""

    requests: int
    came_s: float
    start_s: float
    end_s: float
    worker: int


class _Watched(DynamicBatcher):
    """Notes every batch."""

    def __init__(self, pool: EnginePool, policy: BatchPolicy) -> None:
        self.seen: list[Seen] = []
        super().__init__(pool, policy)

    def _run(self, batch: Sequence[Request]) -> None:
        start_s = time.perf_counter()
        super()._run(batch)
        end_s = time.perf_counter()
        self.seen.append(Seen(len(batch), batch[0].arrived_s, start_s, end_s, threading.get_ident()))


def told_of(seen: Sequence[Seen], workers: int, late_ms: Sequence[float]) -> Rehearsed:
    """Judge what was seen of batches."""
    ordered = sorted(seen, key=lambda one: one.start_s)
    starts, ends = np.array([one.start_s for one in ordered]), np.array([one.end_s for one in ordered])
    nexts: dict[int, Seen] = {}
    busy_until_s: list[float] = []
    for one in reversed(ordered):
        after = nexts.get(one.worker)
        was_waiting = after is not None and after.came_s <= one.end_s
        busy_until_s.append(after.start_s if after is not None and was_waiting else one.end_s)
        nexts[one.worker] = one
    batches: list[tuple[int, int, float]] = []
    wake_ms: list[float] = []
    for index, (one, until_s) in enumerate(zip(ordered, reversed(busy_until_s), strict=True)):
        running = 1 + int((ends[:index] > one.start_s).sum())
        batches.append((one.requests, running, (until_s - one.start_s) * 1e3))
        was_free = int(((starts <= one.came_s) & (ends > one.came_s)).sum()) < workers
        if was_free and not ((starts > one.came_s) & (starts < one.start_s)).any():  # woken for it alone
            wake_ms.append((one.start_s - one.came_s) * 1e3)
    return Rehearsed(batches=batches, wake_ms=wake_ms, late_ms=list(late_ms))
