"""When waiting requests become a batch: pure, so that a simulation decides as the batcher does.

Only requests of the same shape can share a batch; each shape has a queue of its own. A free worker asks
`decide` what to do, does it, and asks again when it is free or when something has changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trtopt.records import BatchPolicy


@dataclass(frozen=True)
class Waiting:
    """A queue that is not empty: how many wait, and since when (seconds on the clock that `decide` is given).

    Some deadline among them cannot be kept by a batch that starts later than `start_by_s`.
    """

    count: int
    oldest_s: float
    start_by_s: float = math.inf


@dataclass(frozen=True)
class Run:
    """Run the `count` oldest requests of the queue of that index, now."""

    queue: int
    count: int


@dataclass(frozen=True)
class Wait:
    """Ask again at `until_s`, or when a request has come; infinite if none is waiting."""

    until_s: float


def decide(now_s: float, queues: Sequence[Waiting], policy: BatchPolicy) -> Run | Wait:
    """What a free worker does next.

    A queue is due when it fills a batch, when its oldest request has waited for the policy's delay, or when a
    deadline wants it. Of several that are due, the one whose oldest request has waited longest.
    """
    due_s = [_due_s(queue, policy) for queue in queues]
    ready = [index for index, at_s in enumerate(due_s) if at_s <= now_s]
    if not ready:
        return Wait(min(due_s, default=math.inf))
    first = min(ready, key=lambda index: queues[index].oldest_s)
    return Run(first, min(queues[first].count, policy.max_batch))


def _due_s(queue: Waiting, policy: BatchPolicy) -> float:
    if queue.count >= policy.max_batch:
        return -math.inf
    return min(queue.oldest_s + policy.max_delay_ms / 1e3, queue.start_by_s)
