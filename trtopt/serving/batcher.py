"""Single requests made into batches, on the workers of a pool."""

from __future__ import annotations

import atexit
import ctypes
import gc
import logging
import math
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TypeVar

import msgspec

from trtopt.errors import (
    ClosedError,
    DataError,
    QueueFullError,
    TrtoptError,
    UsageError,
    WorkerError,
)
from trtopt.records import BatchPolicy, Record
from trtopt.records.plan import check_policy
from trtopt.serving.batching_policy import Run, Waiting, decide
from trtopt.serving.engine_catalogue import Key, Part
from trtopt.serving.pool import EnginePool
from trtopt.serving.pool_worker import Outputs

_OUTCOMES = ("accepted", "rejected", "invalid", "answered", "failed", "cancelled")
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Request(Future[Outputs]):
    """A sample that waits for its outputs, since `arrived_s` on the batcher's clock.

    `on_cancel` hears once that a waiting request has been cancelled, in the thread that did it.
    """

    def __init__(self, part: Part, arrived_s: float, on_cancel: Callable[[Request], None]) -> None:
        super().__init__()
        self.part, self.arrived_s, self._on_cancel = part, arrived_s, on_cancel

    def cancel(self) -> bool:
        """Give a waiting request up; False if it is being computed, or is done."""
        cancelled = super().cancel()
        if cancelled:
            self._on_cancel(self)
        return cancelled


class RequestQueue:
    """Requests in order of arrival, those of one key in a queue of their own. Any one may leave at once.

    No thread's: its owner guards it.
    """

    def __init__(self) -> None:
        self._queues: dict[Key, OrderedDict[Request, None]] = {}  # none of them empty

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, request: Request) -> int:
        """Put it last; the length of its queue."""
        queue = self._queues.setdefault(request.part.key, OrderedDict())
        queue[request] = None
        return len(queue)

    def discard(self, request: Request) -> bool:
        """Take it out, wherever it is; False if it is not here any more."""
        queue = self._queues.get(request.part.key)
        if queue is None or request not in queue:
            return False
        del queue[request]
        if not queue:
            del self._queues[request.part.key]
        return True

    def take(self, queue: int, count: int) -> list[Request]:
        """So many of the oldest of the queue with that index in `waiting`."""
        key = list(self._queues)[queue]
        requests = [self._queues[key].popitem(last=False)[0] for _ in range(count)]
        if not self._queues[key]:
            del self._queues[key]
        return requests

    def take_all(self) -> list[Request]:
        """Every one."""
        requests = [request for queue in self._queues.values() for request in queue]
        self._queues = {}
        return requests

    def waiting(self) -> list[Waiting]:
        """Its queues, as a policy sees them."""
        return [Waiting(len(queue), next(iter(queue)).arrived_s) for queue in self._queues.values()]


class BatcherStatistics(Record, frozen=True, kw_only=True):
    """A batcher's requests so far, by outcome.

    `invalid` and `rejected` requests were never accepted: they did not fit the model, or too many were
    waiting. Each accepted one was `answered`, `failed` or `cancelled`, or is still `waiting` or `running`.
    `batch_sizes` counts batches by how many requests they held.
    """

    accepted: int
    rejected: int
    invalid: int
    answered: int
    failed: int
    cancelled: int
    waiting: int
    running: int
    batch_sizes: dict[int, int]


class DynamicBatcher:
    """Collects requests and runs them as batches, one thread for each of the pool's workers.

    Every accepted request is answered exactly once: with its outputs, an error, or its cancellation. Closing
    answers what has been accepted, and so does the interpreter's end. Without a `policy` it goes by that of
    the pool's plan, or makes batches up to the largest engine's size.
    """

    def __init__(self, pool: EnginePool, policy: BatchPolicy | None = None) -> None:
        self._pool = pool
        self.policy = policy or pool.policy or BatchPolicy(max_batch=pool.largest_batch)
        try:
            check_policy(self.policy)
        except ValueError as error:
            raise UsageError(
                f"{self.policy}: nothing could ever run: {error}",
                "let a batch hold one request at least and one wait, for no less than 0 ms",
            ) from None
        self._policy_now = self.policy
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._backlog = RequestQueue()
        self._counts = Counter[str]()  # of requests, by the names of `BatcherStatistics`
        self._batch_sizes = Counter[int]()
        self._is_closed = False
        self._closing = set[threading.Thread]()  # those in `close`
        self._threads = [
            threading.Thread(target=self._serve, name=f"trtopt-batcher-{number}", daemon=True)
            for number in range(pool.workers)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError as error:  # those that have started would wait for ever
            self._threads = [thread for thread in self._threads if thread.ident is not None]
            self.close()
            raise WorkerError(
                f"{pool.workers} workers need a thread each: {error}", "open the pool with fewer workers"
            ) from None
        atexit.register(
            self.close
        )  # the threads are daemons, so that a forgotten batcher does not keep the process alive

    def submit(self, sample: object, *, copy: bool = True) -> Future[Outputs]:
        """Accept one request.

        Args:
            sample: an array without the batch axis for each input by its name, or the array itself if there
                is but one input.
            copy: whether to copy the sample now, so that the caller may write to its memory again. Without,
                it must not change until answered.

        Returns:
            A future of the outputs by name, without the batch axis. It can be cancelled while it waits, which
            frees its place at once. It fails with WorkerError (the worker that had it failed), DataError (the
            model refuses its values) or ClosedError (closed without draining).

        Raises:
            DataError: names, types or shapes that no engine takes; no other request is affected.
            QueueFullError: as many wait as may wait.
            ClosedError: the batcher has been closed, or was made before this process was forked.
        """
        self._pool.check_process()
        try:
            part = self._pool.catalogue.sample(sample, copy=copy)
        except DataError:
            with self._lock:
                self._counts["invalid"] += 1
            raise
        request = Request(part, time.perf_counter(), self._cancelled)
        with self._lock:
            self._accept(request)
        return request

    def _accept(self, request: Request) -> None:
        if self._is_closed:
            raise ClosedError("the batcher has been closed", "make another one")
        waiting = len(self._backlog)
        if waiting >= self.policy.max_waiting:
            self._counts["rejected"] += 1
            raise QueueFullError(
                f"{waiting} requests are waiting: the queue is full",
                "try again later; more workers, larger batches or a larger max_waiting let more in",
            )
        in_queue = self._backlog.add(request)
        self._counts["accepted"] += 1
        # Otherwise somebody knows already when to look again, or everybody is busy.
        if not waiting or in_queue == self.policy.max_batch:
            self._changed.notify()

    def _cancelled(self, request: Request) -> None:
        with self._lock:
            if not self._backlog.discard(request):
                return  # a worker has taken it out, and counts it
            self._counts["cancelled"] += 1
        request.set_running_or_notify_cancel()

    def _serve(self) -> None:
        wake_on_time()
        goes_on = True
        while goes_on:
            try:
                goes_on = self._step()
            except BaseException as error:  # noqa: BLE001  (who waits must not wait for a thread that ended)
                _log.exception("what waits for a batch fails")
                self._give_up(error)

    def _step(self) -> bool:
        """Run the next batch, and keep nothing of it; False once closed and all done."""
        batch = self._next()
        try:
            if batch:
                self._run(batch)
        except BaseException as error:  # noqa: BLE001  (those that wait can still be served)
            _log.exception("what a batch has not answered fails")
            self._fail([request for request in batch if not request.done()], error)
        return bool(batch)

    def _give_up(self, error: BaseException) -> None:
        with self._lock:
            waiting = self._begun(self._backlog.take_all())
        self._fail(waiting, error)

    def _next(self) -> list[Request]:
        """Requests to run; none once all is done and the batcher closed."""
        with self._lock:
            while True:
                now_s = time.perf_counter()
                step = decide(now_s, self._backlog.waiting(), self._policy_now)
                if isinstance(step, Run):
                    batch = self._begun(self._backlog.take(step.queue, step.count))
                    if len(self._backlog):
                        self._changed.notify()
                    if batch:
                        return batch
                elif self._is_closed:
                    return []
                else:
                    # No thread can wait for longer than TIMEOUT_MAX: it wakes then, and decides again.
                    wait_s = min(step.until_s - now_s, threading.TIMEOUT_MAX)
                    self._changed.wait(wait_s if step.until_s < math.inf else None)

    def _begun(self, taken: Sequence[Request]) -> list[Request]:
        """Those that can no longer be cancelled."""
        begun: list[Request] = []
        for request in taken:
            try:
                is_wanted = request.set_running_or_notify_cancel()
            except RuntimeError:  # its holder has set an answer, and so given ours up
                continue
            if is_wanted:
                begun.append(request)
        self._counts["cancelled"] += len(taken) - len(begun)
        return begun

    def _run(self, batch: Sequence[Request]) -> None:
        try:
            answers = self._pool.run_parts([request.part for request in batch])
        except DataError as error:
            if len(batch) > 1:
                for request in batch:  # one by one: only the request whose values were refused fails
                    self._run([request])
                return
            self._fail(batch, error)
        except Exception as error:  # noqa: BLE001  (whatever it is, the requests must be answered)
            self._fail(batch, error)
        else:
            with self._lock:
                self._batch_sizes[len(batch)] += 1
                self._counts["answered"] += len(batch)
            for request, outputs in zip(batch, answers, strict=True):
                _complete(request.set_result, {name: rows[0, ...] for name, rows in outputs.items()})

    def _fail(self, batch: Sequence[Request], error: BaseException) -> None:
        with self._lock:
            self._counts["failed"] += len(batch)
        for request in batch:
            _complete(request.set_exception, _own(error))

    @property
    def is_closed(self) -> bool:
        """Whether it accepts no more."""
        return self._is_closed

    def statistics(self) -> BatcherStatistics:
        """What became of the requests so far."""
        with self._lock:
            waiting, counts = len(self._backlog), self._counts
            done = counts["answered"] + counts["failed"] + counts["cancelled"]
            return BatcherStatistics(
                **{name: counts[name] for name in _OUTCOMES},
                waiting=waiting,
                running=counts["accepted"] - done - waiting,
                batch_sizes=dict(sorted(self._batch_sizes.items())),
            )

    def close(self, *, drain: bool = True) -> None:
        """Accept no more, answer what has been accepted, and let the threads end.

        With `drain` what is waiting is computed, without it fails with ClosedError. The pool stays open. In a
        fork of the process that made it nothing is waiting.
        """
        if self._pool.is_forked:
            return
        given_up: list[Request] = []
        current = threading.current_thread()
        with self._lock:
            # callbacks of requests may close it, in these threads: two would wait for each other
            self._closing.add(current)
            awaited = [
                one for one in self._threads if current not in self._threads or one not in self._closing
            ]
            self._is_closed = True
            self._policy_now = msgspec.structs.replace(self.policy, max_delay_ms=0.0)
            if not drain:
                given_up = self._begun(self._backlog.take_all())
                self._counts["failed"] += len(given_up)
            self._changed.notify_all()
        for request in given_up:
            error = ClosedError("the batcher was closed before its turn", "send it elsewhere")
            _complete(request.set_exception, error)
        for thread in awaited:
            thread.join()
        self._closing.discard(current)
        atexit.unregister(self.close)

    def __enter__(self) -> DynamicBatcher:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _complete(complete: Callable[[_T], None], value: _T) -> None:
    """Answer a request or fail it. Whatever its callbacks raise goes to the log: others wait for theirs."""
    try:
        complete(value)
    except InvalidStateError:
        pass  # the caller has set a result itself
    except BaseException as error:  # `Future` itself catches exceptions
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # the user's; no signal reaches another thread
        _log.exception("a callback of a request raised what would end its thread")


def _own(error: BaseException) -> Exception:
    """An error of the request's own: an exception carries the traceback of each raise."""
    if isinstance(error, TrtoptError):
        own = type(error)(error.problem, error.remedy)
    else:
        own = WorkerError(f"the batch failed: {type(error).__name__}: {error}", "send the request again")
    own.__cause__ = error.__cause__
    return own


# ── threads that go on when it is their turn ────────────────────────────────────────────────────────────

_SET_TIMER_SLACK = 29  # of prctl(2)
_SLACK_NS = 1

SWITCH_S = 0.0005
"""A tenth of Python's own: a batch changes threads several times, and a request has milliseconds."""


def serve_promptly() -> None:
    """Have this process answer in time; to be called once its pool is open and warm.

    Present objects are excluded from Python's garbage collections, which stop every thread for tens of
    milliseconds. Threads that compute in Python yield after half a millisecond (`sys.setswitchinterval`)
    instead of five.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)


def wake_on_time() -> None:
    """Have Linux wake this thread when its timers run out, instead of up to 50 µs later; elsewhere nothing.

    Delays of batches are a few hundred microseconds, and so are the gaps between requests of a busy service.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, ctypes.c_ulong(_SLACK_NS), 0, 0, 0)
