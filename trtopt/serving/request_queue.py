"""Requests that wait, and who they are for. The backlog itself is no thread's: its owner guards it."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING, RUNNING
from typing import Any, TypeVar

from trtopt.serving.batching_policy import Waiting
from trtopt.serving.engine_catalogue import Key, Part
from trtopt.serving.pool_worker import Outputs

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_S = TypeVar("_S")

_guard = threading.RLock()
"""Held while a future gets its condition, or changes its state without one. A signal's handler may want it in
the thread that has it, and a fork may find it in a thread that the child has not.
"""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_guard._at_fork_reinit)  # type: ignore[attr-defined]


class InferenceFuture(Future[_T]):
    """A future whose condition is made for the first who waits for it, or wants to be called back.

    At saturation most are done before they are waited for. A condition for each, notified without waiters,
    was a fifth of a request's cost in Python.
    """

    def __init__(self) -> None:
        # `Future`'s own would make a condition. A test holds these to what it sets.
        self._state = PENDING
        self._result: _T | None = None
        self._exception = None
        self._waiters = []
        self._done_callbacks: list[Callable[[Future[_T]], object]] = []
        self._has_condition = False

    def __getattr__(self, name: str) -> Any:
        if name != "_condition":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        made = threading.Condition()
        with _guard:
            self._has_condition = True
            return self.__dict__.setdefault(name, made)

    def set_running_or_notify_cancel(self) -> bool:
        """As `Future` does it."""
        with _guard:
            if not self._has_condition and self._state == PENDING:
                self._state = RUNNING
                return True
        return super().set_running_or_notify_cancel()

    def set_result(self, result: _T) -> None:
        """Answer. Whatever callbacks raise goes to the log: others need this thread."""
        with _guard:
            if not self._has_condition and self._state == RUNNING:
                self._result, self._state = result, FINISHED
                return
        self._complete(super().set_result, result)

    def set_exception(self, exception: BaseException | None) -> None:
        """Fail; callbacks as in `set_result`."""
        self._complete(super().set_exception, exception)

    def _complete(self, complete: Callable[[_S], None], value: _S) -> None:
        try:
            complete(value)
        except Exception:
            raise  # not a callback's: `Future` itself catches those
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # the user's; no signal reaches another thread
            _log.exception("a callback of %r raised what would end its thread", self)

    def result(self, timeout: float | None = None) -> _T:
        """As `Future` does it."""
        if self._state == FINISHED and self._exception is None:
            return self._result  # type: ignore[return-value]  # set before the state is
        return super().result(timeout)


class Request(InferenceFuture[Outputs]):
    """Rows that wait for their outputs; times in seconds on the batcher's clock.

    One that `is_sample` has one row and is answered without the batch axis. `on_cancel` hears once that a
    waiting request has been cancelled, in the thread that did it.
    """

    def __init__(
        self,
        part: Part,
        arrived_s: float,
        deadline_s: float,
        on_cancel: Callable[[Request], None],
        *,
        is_sample: bool = True,
    ) -> None:
        super().__init__()
        self.part, self.is_sample = part, is_sample
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
        self._rows: dict[Key, int] = {}
        self.rows = 0
        self._count = self._with_deadline = 0

    def __len__(self) -> int:
        return self._count

    def add(self, request: Request) -> int:
        """Put it last; the rows of its queue."""
        key, rows = request.part.key, request.part.rows
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = OrderedDict()
        queue[request] = None
        self._count += 1
        self.rows += rows
        self._with_deadline += request.deadline_s < math.inf
        in_queue = self._rows[key] = self._rows.get(key, 0) + rows
        return in_queue

    def discard(self, request: Request) -> bool:
        """Take it out, wherever it is; False if it is not here any more."""
        queue = self._queues.get(request.part.key)
        if queue is None or request not in queue:
            return False
        del queue[request]
        self._have_left(request.part.key, [request])
        return True

    def take(self, queue: int, rows: int) -> list[Request]:
        """The oldest of the queue with that index in `waiting`: so many rows at most, but one request."""
        key = list(self._queues)[queue]
        waiting, requests = self._queues[key], list[Request]()
        while waiting:
            request, _ = waiting.popitem(last=False)
            rows -= request.part.rows
            if rows < 0 and requests:
                waiting[request] = None
                waiting.move_to_end(request, last=False)
                break
            requests.append(request)
        self._have_left(key, requests)
        return requests

    def _have_left(self, key: Key, requests: Sequence[Request]) -> None:
        rows = sum([request.part.rows for request in requests])
        self.rows -= rows
        self._rows[key] -= rows
        if not self._queues[key]:
            del self._queues[key], self._rows[key]
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
        self._queues, self._rows = {}, {}
        self.rows = self._count = self._with_deadline = 0
        return requests

    def waiting(self, compute_s: float) -> list[Waiting]:
        """Its queues, as a policy sees them; a batch is expected to take `compute_s`.

        Waiting for more requests takes at most half of the time to a deadline: threads wake late at times.
        """
        return [
            Waiting(self._rows[key], next(iter(queue)).arrived_s, self._start_by_s(queue, compute_s))
            for key, queue in self._queues.items()
        ]

    def _start_by_s(self, queue: OrderedDict[Request, None], compute_s: float) -> float:
        if not self._with_deadline:
            return math.inf
        return min(min(one.deadline_s - compute_s, (one.arrived_s + one.deadline_s) / 2) for one in queue)
