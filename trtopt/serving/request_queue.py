"""Requests that wait, and who they are for. The backlog itself is no thread's: its owner guards it."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

from trtopt.serving.batching_policy import Waiting
from trtopt.serving.engine_catalogue import Key, Part
from trtopt.serving.future import InferenceFuture
from trtopt.serving.pool_worker import Outputs


class Request(InferenceFuture[Outputs]):
    """One sample that waits for its outputs; times in seconds on the batcher's clock.

    `on_cancel` hears once that a waiting request has been cancelled, in the thread that did it.
    """

    def __init__(
        self, part: Part, arrived_s: float, deadline_s: float, on_cancel: Callable[[Request], None]
    ) -> None:
        super().__init__()
        self.part = part
        self.arrived_s = arrived_s
        self.deadline_s = deadline_s
        self._on_cancel = on_cancel

    def cancel(self) -> bool:
        """Give a waiting request up; False if it is being computed, or is done."""
        cancelled = super().cancel()
        if cancelled:
            self._on_cancel(self)
        return cancelled


class RequestQueue:
    """Requests in order of arrival, those of one key in a queue of their own. Any one may leave at once."""

    def __init__(self) -> None:
        self._queues: dict[Key, OrderedDict[Request, None]] = {}
        self._count = self._with_deadline = 0

    def __len__(self) -> int:
        return self._count

    def add(self, request: Request) -> int:
        """Put it last; the length of its queue."""
        queue = self._queues.get(request.part.key)
        if queue is None:
            queue = self._queues[request.part.key] = OrderedDict()
        queue[request] = None
        self._count += 1
        self._with_deadline += request.deadline_s < math.inf
        return len(queue)

    def discard(self, request: Request) -> bool:
        """Take it out, wherever it is; False if it is not here any more."""
        queue = self._queues.get(request.part.key)
        if queue is None or request not in queue:
            return False
        del queue[request]
        self._have_left(request.part.key, [request])
        return True

    def take(self, queue: int, count: int) -> list[Request]:
        """The oldest of the queue with that index in `waiting`."""
        key = list(self._queues)[queue]
        waiting = self._queues[key]
        requests = [waiting.popitem(last=False)[0] for _ in range(min(count, len(waiting)))]
        self._have_left(key, requests)
        return requests

    def _have_left(self, key: Key, requests: Sequence[Request]) -> None:
        if not self._queues[key]:
            del self._queues[key]
        self._count -= len(requests)
        if self._with_deadline:
            self._with_deadline -= sum(request.deadline_s < math.inf for request in requests)

    def take_expired(self, now_s: float) -> list[Request]:
        """Every one whose deadline has passed."""
        if not self._with_deadline:
            return []
        expired = [
            request for queue in self._queues.values() for request in queue if request.deadline_s <= now_s
        ]
        for request in expired:
            self.discard(request)
        return expired

    def take_all(self) -> list[Request]:
        """Every one."""
        requests = [request for queue in self._queues.values() for request in queue]
        self._queues, self._count, self._with_deadline = {}, 0, 0
        return requests

    def waiting(self, compute_s: float) -> list[Waiting]:
        """Its queues, as a policy sees them; a batch is expected to take `compute_s`.

        Waiting for more requests takes at most half of the time to a deadline: threads wake late at times.
        """
        return [
            Waiting(len(queue), next(iter(queue)).arrived_s, self._start_by_s(queue, compute_s))
            for queue in self._queues.values()
        ]

    def _start_by_s(self, queue: OrderedDict[Request, None], compute_s: float) -> float:
        if not self._with_deadline:
            return math.inf
        return min(min(one.deadline_s - compute_s, (one.arrived_s + one.deadline_s) / 2) for one in queue)
