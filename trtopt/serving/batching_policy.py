"""When waiting requests become a batch: pure, so that a simulation decides as the batcher does.

Only requests of the same shape can share a batch; each shape has a queue of its own. A free worker calls
`decide`, does what it returns, and calls it again when it is free or when something has changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from trtopt.records import BatchPolicy


class Waiting(msgspec.Struct, frozen=True):
    """A queue that is not empty: how many wait, and since when, in seconds on `decide`'s clock."""

    count: int
    oldest_s: float


class Run(msgspec.Struct, frozen=True):
    """Run the `count` oldest requests of the queue of that index, now."""

    queue: int
    count: int


class Wait(msgspec.Struct, frozen=True):
    """Call `decide` again at `until_s`, or when a request has come; infinite if none is waiting."""

    until_s: float


def decide(now_s: float, queues: Sequence[Waiting], policy: BatchPolicy) -> Run | Wait:
    """What a free worker does next.

    A queue is due when it fills a batch, or when its oldest request has waited for the policy's delay. Of
    several that are due, the one whose oldest request has waited longest.
    """
    first, until_s = None, math.inf
    for index, queue in enumerate(queues):
        is_full = queue.count >= policy.max_batch
        due_s = -math.inf if is_full else queue.oldest_s + policy.max_delay_ms / 1e3
        if due_s > now_s:
            until_s = min(until_s, due_s)
        elif first is None or queue.oldest_s < queues[first].oldest_s:
            first = index
    if first is None:
        return Wait(until_s)
    return Run(first, min(queues[first].count, policy.max_batch))
