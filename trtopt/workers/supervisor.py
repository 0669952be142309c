"""Runs jobs in worker processes and turns whatever becomes of them into a result or a typed error."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from trtopt.errors import TrtoptError
from trtopt.logs import Logged, heard, log_relayed
from trtopt.processes import DONE, OnProgress
from trtopt.processes.child import Child
from trtopt.processes.messages import frame, receive, send
from trtopt.records import Job
from trtopt.records.base import JobResult
from trtopt.workers.jobs import type_of
from trtopt.workers.worker import Done, Ending, Failure, Progress, ending_of

_TAIL_BYTES = 2000
_log = logging.getLogger(__name__)

_CUDA_DEFAULTS = {"CUDA_MODULE_LOADING": "LAZY"}
"""TensorRT asks for it: kernels that no engine uses are never loaded. What the user has set stays."""


def run_all_jobs(
    jobs: Sequence[Job[JobResult]],
    *,
    places: Sequence[str | None] = (None,),
    limit_s: float | None = None,
    on_progress: OnProgress,
) -> Generator[tuple[int, JobResult | TrtoptError]]:
    """Run all jobs, whatever becomes of each; yields (index, result or what went wrong) as they finish.

    As many run at a time as there are `places`: each names the GPUs that a job there sees, as
    CUDA_VISIBLE_DEVICES does, or None for those that this process sees.
    """
    events: queue.Queue[tuple[int, _Event]] = queue.Queue()
    waiting, free = list(enumerate(jobs))[::-1], list(places)[::-1]
    running: dict[int, _Worker] = {}
    try:
        while waiting or running:
            while waiting and free:
                index, job = waiting.pop()
                running[index] = _Worker(index, job, free.pop(), events)
                on_progress(index, running[index].phase, None)
            index, event = _next(events, running, limit_s)
            worker = running[index]
            if isinstance(event, Progress):
                worker.enter(event.phase)
                on_progress(index, event.phase, event.fraction)
                continue
            outcome = _outcome(worker, event)
            worker.stop()
            free.append(running.pop(index).place)
            on_progress(index, DONE, 1.0)
            yield index, outcome
    finally:
        for worker in running.values():
            worker.stop()


def _next(
    events: queue.Queue[tuple[int, _Event]], running: Mapping[int, _Worker], limit_s: float | None
) -> tuple[int, _Event | TrtoptError]:
    """The next event, of which one is that a worker's time is up."""
    while True:
        oldest = min(running, key=lambda index: running[index].began)
        left = None if limit_s is None else max(0.0, running[oldest].began + limit_s - time.monotonic())
        try:
            index, event = events.get(timeout=left)
        except queue.Empty:
            assert limit_s is not None
            return oldest, running[oldest].overdue(limit_s)
        if index in running:  # one that was overdue may have had its say meanwhile
            return index, event


class _Ended:
    """A worker closed its channel without a result."""


_Event = Progress | Ending | _Ended


def _outcome(worker: _Worker, event: Ending | _Ended | TrtoptError) -> Any:
    """What an event that ends a job says: its result, or an error."""
    if isinstance(event, _Ended):
        return worker.death()
    if isinstance(event, Failure):
        return event.error
    return event.result if isinstance(event, Done) else event


class _Worker:
    """One worker process and the thread that reads its messages."""

    def __init__(
        self, index: int, job: Job[Any], place: str | None, events: queue.Queue[tuple[int, _Event]]
    ) -> None:
        self._type, self._job = type_of(job), job
        self._doing = self._type.doing(job)
        self.place = place
        self.began = time.monotonic()
        self.phase = "starting"
        message = frame(job)
        environment = {name: text for name, text in _CUDA_DEFAULTS.items() if name not in os.environ}
        if place is not None:
            environment["CUDA_VISIBLE_DEVICES"] = place
        level = str(_log.getEffectiveLevel())
        self._process = Child(
            "trtopt.workers.worker",
            level,
            preload=["trtopt.device.ort.server"],  # imports ONNX Runtime
            environment=environment,
            fresh=self._type.is_fresh,
        )
        _log.info("process %d started: %s", self._process.number, self._doing)
        with suppress(OSError):  # it died at once: the reader reports that
            send(self._process.channel, message)
        threading.Thread(target=self._read, args=(index, events), daemon=True).start()

    def _read(self, index: int, events: queue.Queue[tuple[int, _Event]]) -> None:
        """Pass on what it says, up to its end, or ours: `stop` closes the channel."""
        finished, message_type = False, Progress | Logged | ending_of(self._job)
        with suppress(EOFError, OSError, msgspec.DecodeError):
            while True:
                message = receive(self._process.channel, message_type)
                if isinstance(message, Logged):
                    log_relayed(message, self._process.number)
                    continue
                finished = finished or not isinstance(message, Progress)
                events.put((index, message))
        if not finished:
            self._process.wait()
            events.put((index, _Ended()))

    def enter(self, phase: str) -> None:
        """It is at another phase now, maybe."""
        if phase != self.phase:
            _log.debug("process %d, %s: %s", self._process.number, self._doing, phase)
            self.phase = phase

    def death(self) -> TrtoptError:
        """The error for a worker that ended without a result, with the last it said."""
        how, cause = self._process.death(tuple(self._type.native_code(self._job)))
        return self._error(f"its process {how} in phase {self.phase!r}", cause)

    def overdue(self, limit_s: float) -> TrtoptError:
        """The error for a worker that took longer than it may, with the last it said."""
        return self._error(
            f"not done after {limit_s:g} s, while {self.phase}",
            f"give it more time with {self._type.time_option}, or see what it hangs in",
        )

    def _error(self, what: str, remedy: str) -> TrtoptError:
        problem = f"{self._doing}: {what}\nIts last words:\n{self._last_words()}"
        return self._type.error(problem, remedy)

    def _last_words(self) -> str:
        """The ends of the log of native code and of what was printed."""
        log, path = b"", self._type.log(self._job)
        if path is not None:
            with suppress(OSError):
                log = path.read_bytes()[-_TAIL_BYTES:]
        told = (log.decode(errors="replace").strip(), self._process.printed(_TAIL_BYTES))
        return "\n".join(filter(None, told)) or "it printed nothing"

    def stop(self) -> None:
        """End the process, those that it started too, and wait for it."""
        printed = self._process.printed() if _log.isEnabledFor(logging.INFO) else ""
        status, seconds = self._process.stop(), time.monotonic() - self.began
        number = self._process.number
        _log.info("process %d, %s: ended with %d after %.1f s", number, self._doing, status, seconds)
        if printed:
            heard("stderr", "info", f"process {number} printed: {printed}")
