"""A discrete-event simulation of the batcher on its workers. Pure, and decided by the runtime's own policy.

Between two decisions nothing leaves the queues, so that time may jump: to the next arrival, to the end of
somebody's delay, to the end of a batch. Several idle workers are alike: the first takes the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from trtopt.plan.service import Service
from trtopt.records import BatchPolicy
from trtopt.runtime.batching import Run, Waiting, decide


@dataclass(frozen=True)
class Arrivals:
    """When requests arrive, in seconds, ascending; and the shape of each, as an index of services."""

    at_s: NDArray[np.float64]
    shape: NDArray[np.int64]


@dataclass(frozen=True)
class Simulated:
    """What became of the requests, in the order of arrival, in seconds.

    `start_s` and `end_s` are of the batch that a request ran in, whose number is `batch`; of a request that
    was rejected they are NaN and -1. Batches are numbered in the order of their starts.
    """

    arrival_s: NDArray[np.float64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    batch: NDArray[np.int64]
    busy_s: float

    @property
    def served(self) -> NDArray[np.bool_]:
        """Which requests were not rejected."""
        return self.batch >= 0

    @property
    def latency_ms(self) -> NDArray[np.float64]:
        """From arrival to answer, of those that were served."""
        latency: NDArray[np.float64] = (self.end_s - self.arrival_s)[self.served] * 1e3
        return latency

    @property
    def rejected(self) -> int:
        """How many found the queue full."""
        return int(len(self.batch) - self.served.sum())

    @property
    def throughput(self) -> float:
        """Requests answered a second, from the first arrival to the last answer."""
        if not self.served.any():
            return 0.0
        return float(self.served.sum() / (np.nanmax(self.end_s) - self.arrival_s[0]))


def simulate(
    services: Sequence[Service], workers: int, policy: BatchPolicy, arrivals: Arrivals, seed: int = 0
) -> Simulated:
    """Serve all arrivals; `services` has one for each shape of request.

    A batch that begins while others run takes what it was measured to take among as many.
    """
    state = _State(services, workers, policy, arrivals, seed)
    state.run()
    return Simulated(
        arrivals.at_s,
        np.asarray(state.start_s),
        np.asarray(state.end_s),
        np.asarray(state.batch),
        state.busy_s,
    )


class _State:
    def __init__(
        self, services: Sequence[Service], workers: int, policy: BatchPolicy, arrivals: Arrivals, seed: int
    ) -> None:
        self._services, self._policy = services, policy
        self._at_s: list[float] = arrivals.at_s.tolist()
        self._shape: list[int] = arrivals.shape.tolist()
        count = len(self._at_s)
        self._uniform: list[float] = RandomState(seed).random_sample(count + policy.max_batch).tolist()
        self._drawn = self._batches = self._waiting = self._next = 0
        self._free_s = [-math.inf] * workers  # a heap of when workers are, or were, done
        self._queues: dict[int, _Queue] = {}
        self.start_s, self.end_s, self.batch = [math.nan] * count, [math.nan] * count, [-1] * count
        self.busy_s = 0.0

    def run(self) -> None:
        now_s, count = -math.inf, len(self._at_s)
        while self._next < count or self._waiting:
            now_s = max(now_s, self._free_s[0])
            self._admit(now_s)
            queues = list(self._queues.values())
            step = decide(now_s, [queue.seen(self._at_s) for queue in queues], self._policy)
            if isinstance(step, Run):
                self._take(queues[step.queue], step.count, now_s)
            else:
                now_s = min(step.until_s, self._at_s[self._next] if self._next < count else math.inf)

    def _admit(self, now_s: float) -> None:
        """Nothing has left since the last decision: who finds too many waiting is rejected."""
        index, at_s = self._next, self._at_s
        while index < len(at_s) and at_s[index] <= now_s:
            if self._waiting < self._policy.max_waiting:
                self._queues.setdefault(self._shape[index], _Queue(self._shape[index])).add(index)
                self._waiting += 1
            index += 1
        self._next = index

    def _take(self, queue: _Queue, count: int, now_s: float) -> None:
        running = 1 + sum(free_s > now_s for free_s in self._free_s)
        taken = queue.take(count)
        if not queue.has_any:
            del self._queues[queue.shape]  # as the batcher's: a queue that comes again comes last
        self._waiting -= count
        draws = self._uniform[self._drawn : self._drawn + count]
        self._drawn += count
        seconds = self._services[queue.shape].draw_s(count, running, draws)
        end_s = now_s + seconds
        heapreplace(self._free_s, end_s)
        self.busy_s += seconds
        for index in taken:
            self.start_s[index], self.end_s[index], self.batch[index] = now_s, end_s, self._batches
        self._batches += 1


class _Queue:
    """Requests of one shape by index; the oldest is at `_head`."""

    def __init__(self, shape: int) -> None:
        self.shape = shape
        self._indices: list[int] = []
        self._head = 0

    @property
    def has_any(self) -> bool:
        return self._head < len(self._indices)

    def add(self, index: int) -> None:
        self._indices.append(index)

    def seen(self, at_s: Sequence[float]) -> Waiting:
        return Waiting(len(self._indices) - self._head, at_s[self._indices[self._head]])

    def take(self, count: int) -> list[int]:
        self._head += count
        return self._indices[self._head - count : self._head]
