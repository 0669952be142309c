"""Single requests made into batches, on the workers of a pool: for threads, and for asyncio."""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from numbers import Real
from types import TracebackType

import msgspec
import numpy as np

from trtopt.errors import (
    ClosedError,
    DataError,
    DeadlineError,
    QueueFullError,
    TrtoptError,
    UsageError,
    WorkerError,
)
from trtopt.records import BatcherStatistics, BatchPolicy, Spread
from trtopt.records.plan import check_policy
from trtopt.serving.batching_policy import Run, decide
from trtopt.serving.engine_catalogue import Part
from trtopt.serving.pool import EnginePool
from trtopt.serving.pool_worker import Outputs
from trtopt.serving.request_queue import Request, RequestQueue
from trtopt.serving.scheduling import wake_on_time

_log = logging.getLogger(__name__)


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
        self._tally = Counters()
        self._compute_s = 0.0  # what the last batch took
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"trtopt-batcher-{number}", daemon=True)
            for number in range(pool.workers)
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(
            self.close
        )  # the threads are daemons, so that a forgotten batcher does not keep the process alive

    def submit(
        self, sample: object, *, deadline_ms: float | None = None, copy: bool = True
    ) -> Future[Outputs]:
        """Accept one request.

        Args:
            sample: an array without the batch axis for each input by its name, or the array itself if there
                is but one input; of the kinds that `EnginePool.run` takes.
            deadline_ms: from now; a request that has not begun to be computed by then fails.
            copy: whether to copy the sample now, so that the caller may write to its memory again. Without,
                it must not change until answered; arrays on the GPU are taken only so.

        Returns:
            A future of the outputs by name, without the batch axis. It can be cancelled while it waits.
            It fails with DeadlineError, WorkerError (the worker that had it failed), DataError (the model
            refuses its values) or ClosedError (closed without draining).

        Raises:
            DataError: names, types or shapes that no engine takes, or an array on the GPU that is to be
                copied; no other request is affected.
            QueueFullError: as many wait as may wait.
            ClosedError: the batcher has been closed, or was made before this process was forked.
            UsageError: a deadline that is no number.
        """
        self._pool.check_process()
        try:
            part = self._pool.catalogue.sample(sample, copy=copy)
        except DataError:
            self._count_invalid()
            raise
        return self._submit(part, deadline_ms, is_sample=True)

    def submit_rows(
        self, rows: object, *, deadline_ms: float | None = None, copy: bool = True
    ) -> Future[Outputs]:
        """Accept rows that come together as one request: it is queued, computed and answered as a whole.

        Each counts in `max_batch` and `max_waiting`; what exceeds the largest engine runs as several batches.

        Args:
            rows: an array [rows, …] for each input by its name, or the array itself if there is but one.
            deadline_ms: as for `submit`.
            copy: as for `submit`.

        Returns:
            A future of the outputs by name, as [rows, …]; otherwise as that of `submit`.

        Raises:
            DataError: as for `submit`, or more rows than may wait.
            QueueFullError: with these, more rows would wait than may.
            ClosedError, UsageError: as for `submit`.
        """
        self._pool.check_process()
        try:
            part = self._pool.catalogue.part(rows, copy=copy)
            if part.rows > self.policy.max_waiting:
                raise DataError(
                    f"{part.rows} rows in one request, and {self.policy.max_waiting} may wait",
                    "send fewer at a time, or give the policy a larger max_waiting",
                )
        except DataError:
            self._count_invalid()
            raise
        return self._submit(part, deadline_ms, is_sample=False)

    def _count_invalid(self) -> None:
        with self._lock:
            self._tally.invalid += 1

    def _submit(self, part: Part, deadline_ms: float | None, *, is_sample: bool) -> Request:
        now_s = time.perf_counter()
        deadline_s = math.inf if deadline_ms is None else _deadline_s(now_s, deadline_ms)
        request = Request(part, now_s, deadline_s, self._cancelled, is_sample=is_sample)
        expired: list[Request] = []
        try:
            with self._lock:
                if self._backlog.rows + part.rows > self.policy.max_waiting:
                    expired = self._take_expired(now_s)
                self._accept(request)
        finally:
            if expired:
                _expire(expired)
        return request

    def _accept(self, request: Request) -> None:
        if self._is_closed:
            raise ClosedError("the batcher has been closed", "make another one")
        waiting, rows = self._backlog.rows, request.part.rows
        if waiting + rows > self.policy.max_waiting:
            self._tally.rejected += 1
            raise QueueFullError(
                f"{waiting} {'requests' if waiting == len(self._backlog) else 'rows'} are waiting: "
                "the queue is full",
                "try again later; more workers, larger batches or a larger max_waiting let more in",
            )
        in_queue = self._backlog.add(request)
        self._tally.accepted += 1
        # Otherwise somebody knows already when to look again, or everybody is busy.
        is_full_now = in_queue - rows < self.policy.max_batch <= in_queue
        if not waiting or is_full_now or request.deadline_s < math.inf:
            self._changed.notify()

    def _cancelled(self, request: Request) -> None:
        with self._lock:
            if not self._backlog.discard(request):
                return  # a worker has taken it out, and counts it
            self._tally.cancelled += 1
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
        """Do what is to be done next, and keep nothing of it; False once closed and all done."""
        batch, expired = self._next()
        try:
            _expire(expired)
            if batch:
                self._run(batch)
        except BaseException as error:  # noqa: BLE001  (those that wait can still be served)
            _log.exception("what a batch has not answered fails")
            self._fail([request for request in (*batch, *expired) if not request.done()], error)
        return bool(batch or expired)

    def _give_up(self, error: BaseException) -> None:
        with self._lock:
            waiting = self._begun(self._backlog.take_all())
        self._fail(waiting, error)

    def _next(self) -> tuple[list[Request], list[Request]]:
        """Requests to run and requests to fail; neither once all is done and the batcher closed."""
        with self._lock:
            while True:
                now_s = time.perf_counter()
                if expired := self._take_expired(now_s):
                    return [], expired
                step = decide(now_s, self._backlog.waiting(self._compute_s), self._policy_now)
                if isinstance(step, Run):
                    if batch := self._take(step):
                        return batch, []
                elif self._is_closed:
                    return [], []
                else:
                    # No thread can wait for longer than TIMEOUT_MAX: it wakes then, and decides again.
                    wait_s = min(step.until_s - now_s, threading.TIMEOUT_MAX)
                    self._changed.wait(wait_s if step.until_s < math.inf else None)

    def _take(self, step: Run) -> list[Request]:
        batch = self._begun(self._backlog.take(step.queue, step.count))
        if len(self._backlog):
            self._changed.notify()
        return batch

    def _take_expired(self, now_s: float) -> list[Request]:
        expired = self._begun(self._backlog.take_expired(now_s))
        self._tally.expired += len(expired)
        return expired

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
        self._tally.cancelled += len(taken) - len(begun)
        return begun

    def _run(self, batch: Sequence[Request]) -> None:
        start_s = time.perf_counter()
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
            end_s = time.perf_counter()
            with self._lock:
                self._compute_s = end_s - start_s
                rows = sum([request.part.rows for request in batch])
                self._tally.batch(rows, [start_s - request.arrived_s for request in batch], end_s - start_s)
                self._tally.answered += len(batch)
            whole = self._pool.sized_outputs
            for request, outputs in zip(batch, answers, strict=True):
                try:
                    request.set_result(
                        {name: rows if name in whole else rows[0, ...] for name, rows in outputs.items()}
                        if request.is_sample
                        else outputs
                    )
                except InvalidStateError:  # its holder has set one: the others get theirs
                    continue

    def _fail(self, batch: Sequence[Request], error: BaseException) -> None:
        with self._lock:
            self._tally.failed += len(batch)
        for request in batch:
            _end(request, _own(error))

    @property
    def is_closed(self) -> bool:
        """Whether it accepts no more."""
        return self._is_closed

    def statistics(self) -> BatcherStatistics:
        """What became of the requests so far."""
        with self._lock:
            return self._tally.statistics(len(self._backlog))

    def close(self, *, drain: bool = True) -> None:
        """Accept no more, answer what has been accepted, and let the threads end.

        With `drain` what is waiting is computed, without it fails with ClosedError. The pool stays open. In a
        fork of the process that made it nothing is waiting.
        """
        if self._pool.is_forked:
            return
        given_up: list[Request] = []
        with self._lock:
            self._is_closed = True
            self._policy_now = msgspec.structs.replace(self.policy, max_delay_ms=0.0)
            if not drain:
                given_up = self._begun(self._backlog.take_all())
                self._tally.failed += len(given_up)
            self._changed.notify_all()
        for request in given_up:
            _end(request, ClosedError("the batcher was closed before its turn", "send it elsewhere"))
        for thread in self._threads:
            if thread is not threading.current_thread():  # a callback of a request may close it
                thread.join()
        atexit.unregister(self.close)

    def __enter__(self) -> DynamicBatcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _deadline_s(now_s: float, deadline_ms: float) -> float:
    """When that deadline is, on the batcher's clock.

    Raises:
        UsageError: it is no number.
    """
    with suppress(OverflowError):  # of an integer that is too large for a float
        if isinstance(deadline_ms, Real) and not math.isnan(deadline_ms):
            return now_s + deadline_ms / 1e3
    raise UsageError(
        f"deadline_ms={deadline_ms!r}: is not a number of milliseconds",
        "give milliseconds from now, or None to wait without a limit",
    )


def _expire(requests: Sequence[Request]) -> None:
    for request in requests:
        waited_ms = (time.perf_counter() - request.arrived_s) * 1e3
        _end(
            request,
            DeadlineError(
                f"the deadline passed while the request was waiting, {waited_ms:.1f} ms so far",
                "send less, give it more time, or serve it with more workers",
            ),
        )


def _end(request: Request, error: Exception) -> None:
    with suppress(InvalidStateError):  # the caller has set a result itself
        request.set_exception(error)


def _own(error: BaseException) -> Exception:
    """An error of the request's own: an exception carries the traceback of each raise."""
    if isinstance(error, TrtoptError):
        own = type(error)(error.problem, error.remedy)
    else:
        own = WorkerError(f"the batch failed: {type(error).__name__}: {error}", "send the request again")
    own.__cause__ = error.__cause__
    return own


_LATEST = 4096


class Counters:
    """Counts of a batcher. No thread's: its owner guards it."""

    def __init__(self) -> None:
        self.accepted = self.rejected = self.invalid = 0
        self.answered = self.failed = self.expired = self.cancelled = 0
        self._batch_sizes: Counter[int] = Counter()
        self._queue_ms: deque[float] = deque(maxlen=_LATEST)
        self._compute_ms: deque[float] = deque(maxlen=_LATEST)

    def batch(self, rows: int, queue_s: Iterable[float], compute_s: float) -> None:
        """A batch has been run: its rows, how long each of its requests waited, and what computing took."""
        waits_ms = [seconds * 1e3 for seconds in queue_s]
        self._batch_sizes[rows] += 1
        self._queue_ms.extend(waits_ms)
        self._compute_ms.append(compute_s * 1e3)

    def statistics(self, waiting: int) -> BatcherStatistics:
        """All of it, `waiting` requests being in the queue."""
        done = self.answered + self.failed + self.expired + self.cancelled
        return BatcherStatistics(
            accepted=self.accepted,
            rejected=self.rejected,
            invalid=self.invalid,
            answered=self.answered,
            failed=self.failed,
            expired=self.expired,
            cancelled=self.cancelled,
            waiting=waiting,
            running=self.accepted - done - waiting,
            batch_sizes=dict(sorted(self._batch_sizes.items())),
            queue=spread(self._queue_ms),
            compute=spread(self._compute_ms),
        )


def spread(values_ms: Iterable[float]) -> Spread:
    """Percentiles as numpy gives them, interpolated between neighbours."""
    values = np.fromiter(values_ms, np.float64)
    if not values.size:
        return Spread(p50_ms=None, p90_ms=None, p99_ms=None, max_ms=None)
    p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
    return Spread(p50_ms=p50, p90_ms=p90, p99_ms=p99, max_ms=float(values.max()))


class AsyncBatcher:
    """A `DynamicBatcher` whose answers are awaited; several event loops may use one."""

    def __init__(self, batcher: DynamicBatcher) -> None:
        self._batcher = batcher

    async def submit(self, sample: object, *, deadline_ms: float | None = None, copy: bool = True) -> Outputs:
        """As `DynamicBatcher.submit`, and its answer. Cancelling the task cancels a request that waits."""
        import asyncio  # at use: whatever imports this module need not serve a loop

        return await asyncio.wrap_future(self._batcher.submit(sample, deadline_ms=deadline_ms, copy=copy))

    async def submit_rows(
        self, rows: object, *, deadline_ms: float | None = None, copy: bool = True
    ) -> Outputs:
        """As `DynamicBatcher.submit_rows`, and its answer; otherwise as `submit`."""
        import asyncio

        return await asyncio.wrap_future(self._batcher.submit_rows(rows, deadline_ms=deadline_ms, copy=copy))

    def statistics(self) -> BatcherStatistics:
        """What became of the requests so far."""
        return self._batcher.statistics()

    async def close(self, *, drain: bool = True) -> None:
        """As `DynamicBatcher.close`, while the event loop continues."""
        import asyncio

        await asyncio.to_thread(self._batcher.close, drain=drain)

    async def __aenter__(self) -> AsyncBatcher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
