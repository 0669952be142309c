"""What is seen of batches as requests are served: how long workers are at them, and who wakes late."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtopt.records import BatchPolicy
from trtopt.serving.batcher import DynamicBatcher
from trtopt.serving.engine_catalogue import Key
from trtopt.serving.pool import EnginePool
from trtopt.serving.request_queue import Request


class Seen(NamedTuple):
    """A batch: its kind of request, how many, when it was due, begin and end in seconds, and its worker."""

    bucket: int
    requests: int
    due_s: float
    start_s: float
    end_s: float
    worker: int


class Took(NamedTuple):
    """A batch: its kind of request, how many, and how many batches ran when it began, itself included.

    `ms` is how long its worker was busy with it, until it began the next one if that was due.
    """

    bucket: int
    requests: int
    running: int
    ms: float


class TracedBatcher(DynamicBatcher):
    """Notes every batch; `buckets` numbers the kinds of requests."""

    def __init__(
        self, pool: EnginePool, buckets: Mapping[Key, int], policy: BatchPolicy | None = None
    ) -> None:
        self._seen: list[tuple[int, int, float, float, float, int]] = []
        """Plain tuples: Python's garbage collector goes through named ones."""
        self._buckets, self._workers = buckets, pool.workers
        super().__init__(pool, policy)

    def trace(self, *, since_s: float) -> tuple[list[Took], list[float]]:
        """The batches that began since then, as `batches_and_wake_times`."""
        seen = [Seen(*one) for one in self._seen]
        return batches_and_wake_times([one for one in seen if one.start_s >= since_s], self._workers)

    def _run(self, batch: Sequence[Request]) -> None:
        start_s = time.perf_counter()
        super()._run(batch)
        end_s = time.perf_counter()
        bucket, worker = self._buckets[batch[0].part.key], threading.get_ident()
        self._seen.append((bucket, len(batch), self._due_s(batch), start_s, end_s, worker))

    def _due_s(self, batch: Sequence[Request]) -> float:
        """When the delay of the first was over, or the last one came that the batch holds."""
        due_s = batch[0].arrived_s + self.policy.max_delay_ms / 1e3
        return due_s if len(batch) < self.policy.max_batch else min(due_s, batch[-1].arrived_s)


def batches_and_wake_times(seen: Sequence[Seen], workers: int) -> tuple[list[Took], list[float]]:
    """Batches in the order of their begins; and, where a worker was idle, the milliseconds from a batch's
    being due to its begin.
    """
    ordered = sorted(seen, key=lambda one: one.start_s)
    starts, ends = np.array([one.start_s for one in ordered]), np.sort([one.end_s for one in ordered])
    nexts: dict[int, Seen] = {}
    busy_until_s: list[float] = []
    for one in reversed(ordered):
        after = nexts.get(one.worker)
        was_waiting = after is not None and after.due_s <= one.end_s
        busy_until_s.append(after.start_s if after is not None and was_waiting else one.end_s)
        nexts[one.worker] = one
    batches: list[Took] = []
    wake_ms: list[float] = []
    for index, (one, until_s) in enumerate(zip(ordered, reversed(busy_until_s), strict=True)):
        running = 1 + index - _up_to(ends, one.start_s)
        batches.append(Took(one.bucket, one.requests, running, (until_s - one.start_s) * 1e3))
        if one.start_s < one.due_s:
            continue  # the batcher was closed, and did not wait for more requests
        begun = _up_to(starts, one.due_s)
        was_free = begun - _up_to(ends, one.due_s) < workers
        if was_free and np.searchsorted(starts, one.start_s) == begun:  # woken for this batch
            wake_ms.append((one.start_s - one.due_s) * 1e3)
    return batches, wake_ms


def _up_to(ascending: NDArray[np.float64], time_s: float) -> int:
    return int(np.searchsorted(ascending, time_s, side="right"))
