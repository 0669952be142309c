"""Runs jobs in worker processes and turns whatever becomes of them into a result or a typed error."""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, Any

import msgspec

from trtopt.errors import TrtoptError, rebuild
from trtopt.logs import Logged, heard, log_relayed
from trtopt.processes import (
    DONE as DONE,
    OnProgress as OnProgress,
    cause_of_death,
    how_it_ended,
    out_of_memory_kills,
    python_command,
)
from trtopt.workers.jobs import Job, type_of
from trtopt.workers.protocol import Event, Failure, Message, Progress, Result

_TAIL_BYTES = 2000
_LOGGED_BYTES = 1 << 16
_log = logging.getLogger(__name__)
_decode = msgspec.json.Decoder(Message).decode

_CUDA_DEFAULTS = {"CUDA_MODULE_LOADING": "LAZY"}
"""TensorRT asks for it: kernels that no engine uses are never loaded. What the user has set stays."""


def run_all_jobs(
    jobs: Sequence[Job],
    *,
    places: Sequence[str | None] = (None,),
    limit_s: float | None = None,
    on_progress: OnProgress,
) -> Generator[tuple[int, Result | TrtoptError]]:
    """Run all jobs, whatever becomes of each; yields (index, result or what went wrong) as they finish.

    As many run at a time as there are `places`: each names the GPUs that a job there sees, as
    CUDA_VISIBLE_DEVICES does, or None for those that this process sees.
    """
    events: queue.Queue[tuple[int, Event | _Ended]] = queue.Queue()
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
    events: queue.Queue[tuple[int, Event | _Ended]], running: Mapping[int, _Worker], limit_s: float | None
) -> tuple[int, Event | _Ended | TrtoptError]:
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


def _outcome(worker: _Worker, event: Failure | _Ended | Result | TrtoptError) -> Result | TrtoptError:
    """What an event that ends a job says."""
    if isinstance(event, _Ended):
        return worker.death(event.status)
    if isinstance(event, Failure):
        return rebuild(event.error, event.problem, event.remedy)
    return event


class _Ended(msgspec.Struct, frozen=True):
    """A worker closed its pipe without a result."""

    status: int


class _Worker:
    """One worker process and the thread that reads its messages."""

    def __init__(self, index: int, job: Job, place: str | None, events: queue.Queue[tuple[int, Any]]) -> None:
        self._type, self._job = type_of(job), job
        self._doing = self._type.doing(job)
        self.place = place
        self.began = time.monotonic()
        self.phase = "starting"
        self._oom_kills = out_of_memory_kills()
        self._stderr: IO[bytes] = TemporaryFile()  # noqa: SIM115  (closed by `stop`)
        environment = _CUDA_DEFAULTS | os.environ
        if place is not None:
            environment["CUDA_VISIBLE_DEVICES"] = place
        self._process = subprocess.Popen(
            python_command("trtopt.workers.worker", str(_log.getEffectiveLevel())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        _log.info("process %d started: %s", self._process.pid, self._doing)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died at once: the reader reports that
            self._process.stdin.write(msgspec.json.encode(job) + b"\n")
            self._process.stdin.flush()
        threading.Thread(target=self._end_what_it_leaves, daemon=True).start()
        threading.Thread(target=self._read, args=(index, events), daemon=True).start()

    def _end_what_it_leaves(self) -> None:
        """Once the worker is dead, end what it has started: that may hold the pipe open, and a device."""
        with suppress(ChildProcessError):  # it has been waited for: `stop` was first
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)  # its number stays its own
            self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # it leads a session of its own

    def _read(self, index: int, events: queue.Queue[tuple[int, Any]]) -> None:
        finished = False
        for message in self._messages():
            if isinstance(message, Logged):
                log_relayed(message, self._process.pid)
                continue
            finished = finished or not isinstance(message, Progress)
            events.put((index, message))
        if not finished:
            events.put((index, _Ended(self._process.wait())))

    def _messages(self) -> Iterator[Any]:
        """What it says, up to its end, or ours: `stop` closes the pipe, maybe while it is read."""
        assert self._process.stdout is not None
        while True:
            try:
                line = self._process.stdout.readline()
                message = _decode(line) if line else None
            except (ValueError, msgspec.DecodeError):  # closed, or ended in the middle of a line
                return
            if message is None:
                return
            yield message

    def enter(self, phase: str) -> None:
        """It is at another phase now, maybe."""
        if phase != self.phase:
            _log.debug("process %d, %s: %s", self._process.pid, self._doing, phase)
            self.phase = phase

    def death(self, status: int) -> TrtoptError:
        """The error for a worker that ended without a result, with the last it said."""
        starved = out_of_memory_kills() > self._oom_kills
        cause = cause_of_death(
            status, self._printed(_LOGGED_BYTES), tuple(self._type.native_code(self._job)), starved=starved
        )
        return self._error(f"its process {how_it_ended(status)} in phase {self.phase!r}", cause)

    def overdue(self, limit_s: float) -> TrtoptError:
        """The error for a worker that took longer than it may, with the last it said."""
        return self._error(
            f"not done after {limit_s:g} s, while {self.phase}",
            f"give it more time with {self._type.time_option}, or see what it hangs in",
        )

    def _error(self, what: str, remedy: str) -> TrtoptError:
        problem = f"{self._doing}: {what}. Its last words:\n{self._last_words()}"
        return self._type.error(problem, remedy)

    def _last_words(self) -> str:
        """The ends of the log of native code and of what was printed."""
        log, path = b"", self._type.log(self._job)
        if path is not None:
            with suppress(OSError):
                log = path.read_bytes()[-_TAIL_BYTES:]
        told = (log.decode(errors="replace").strip(), self._printed(_TAIL_BYTES))
        return "\n".join(filter(None, told)) or "it printed nothing"

    def _printed(self, most: int) -> str:
        """The end of what was printed."""
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - most))
        return self._stderr.read().decode(errors="replace").strip()

    def stop(self) -> None:
        """End the process, those that it started too, and wait for it.

        Workers clean up nothing: their files have temporary names.
        """
        if self._process.returncode is None:  # not waited for: its number is still its own
            self._kill()
        status, seconds = self._process.wait(), time.monotonic() - self.began
        _log.info(
            "process %d, %s: ended with %d after %.1f s", self._process.pid, self._doing, status, seconds
        )
        if _log.isEnabledFor(logging.INFO) and (printed := self._printed(_LOGGED_BYTES)):
            heard("stderr", "info", f"process {self._process.pid} printed: {printed}")
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
