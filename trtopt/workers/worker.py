"""A job in a worker process, from both ends of its channel, and the messages that pass between them.

Native code can crash, hang or leave the CUDA context unusable: there it takes only its own job along.
Whatever becomes of it is turned into a result or a typed error.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from socket import socket
from typing import Any, Generic

import msgspec

from trtopt.errors import DeviceError, TrtoptError, rebuild
from trtopt.logs import Logged, heard, log_relayed, relay
from trtopt.processes.child import Child
from trtopt.processes.messages import frame, frame_for_reading, receive, send
from trtopt.records import Job, Record
from trtopt.records.base import JobResult
from trtopt.workers.jobs import ANY_JOB, type_of

_TAIL_BYTES = 2000
_log = logging.getLogger(__name__)

_CUDA_DEFAULTS = {"CUDA_MODULE_LOADING": "LAZY"}
"""TensorRT asks for it: kernels that no engine uses are never loaded. What the user has set stays."""


class Progress(Record, frozen=True, kw_only=True, tag="progress"):
    """How far a job has come; `fraction` is None where it is unknown."""

    phase: str
    fraction: float | None


class Failure(Record, frozen=True, kw_only=True, tag="failure"):
    """A `TrtoptError` by the name of its class."""

    name: str
    problem: str
    remedy: str

    @classmethod
    def of(cls, error: TrtoptError) -> Failure:
        """An error as it travels."""
        return cls(name=type(error).__name__, problem=error.problem, remedy=error.remedy)

    @property
    def error(self) -> TrtoptError:
        """The error again."""
        return rebuild(self.name, self.problem, self.remedy)


class Done(Record, Generic[JobResult], frozen=True, kw_only=True, tag="done"):
    """What came of a job."""

    result: JobResult


Ending = Done[Any] | Failure
Message = Progress | Logged | Ending


def ending_of(job: Job[Any]) -> Any:
    """The type of how a job ends."""
    return Done[job.result_type()] | Failure  # type: ignore[misc]


# ── in the process ──────────────────────────────────────────────────────────────────────────────────────────


def main(channel: socket, level: str) -> None:
    """Read a job, run it, report; what is logged from `level` on, a number of `logging`, is reported too."""
    job: Job[Any] = receive(channel, ANY_JOB)
    report = reporter(channel)

    def progress(phase: str, fraction: float | None) -> None:
        report(Progress(phase=phase, fraction=fraction))

    with relay(int(level), report):
        try:
            report(Done(result=type_of(job).run(job, progress)))
        except TrtoptError as error:
            report(Failure.of(error))
        except MemoryError:  # a batch too large, say: no fault that a traceback would help to find
            report(Failure.of(DeviceError("out of host memory", "use a smaller batch or model")))


def reporter(channel: socket) -> Callable[[Message], None]:
    """What sends messages, each whole, for any thread and for what logs in the midst of it.

    Garbage is collected whenever Python likes, and native code logs when its objects are destroyed.
    """
    guard = threading.RLock()

    def report(message: Message) -> None:
        with guard:
            send(channel, frame_for_reading(message))

    return report


# ── beside it ───────────────────────────────────────────────────────────────────────────────────────────────

Event = Progress | Ending | TimeoutError | EOFError
"""What a worker says, or that its time is up, or that it closed its channel without a result."""


class Worker:
    """One worker process and the thread that reads its messages, each into `events` behind the job's index.

    `place` names the GPUs that it sees, as CUDA_VISIBLE_DEVICES does; None: those that this process sees.
    """

    def __init__(
        self,
        index: int,
        job: Job[Any],
        place: str | None,
        limit_s: float | None,
        events: queue.Queue[tuple[int, Event]],
    ) -> None:
        self._type, self._job, self._limit_s = type_of(job), job, limit_s
        self._doing = self._type.doing(job)
        self.place = place
        self._began = time.monotonic()
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

        def read() -> None:
            for event in self._events():
                events.put((index, event))

        threading.Thread(target=read, daemon=True).start()

    def _events(self) -> Iterator[Event]:
        """What it says, up to its end, or ours: `stop` closes the channel."""
        message_type = Progress | Logged | ending_of(self._job)
        try:
            while True:
                if self._limit_s is not None:
                    left_s = self._began + self._limit_s - time.monotonic()
                    if left_s <= 0:
                        raise TimeoutError
                    self._process.channel.settimeout(left_s)
                message = receive(self._process.channel, message_type)
                if isinstance(message, Logged):
                    log_relayed(message, self._process.number)
                    continue
                yield message
                if not isinstance(message, Progress):
                    return
        except TimeoutError as error:
            yield error
        except (EOFError, OSError, msgspec.DecodeError):
            self._process.wait()
            yield EOFError()

    def enter(self, phase: str) -> None:
        """It is at another phase now, maybe."""
        if phase != self.phase:
            _log.debug("process %d, %s: %s", self._process.number, self._doing, phase)
            self.phase = phase

    def outcome(self, event: Ending | TimeoutError | EOFError) -> Any:
        """What an event that ends the job says: its result, or an error with the last that was said."""
        if isinstance(event, Done):
            return event.result
        if isinstance(event, Failure):
            return event.error
        if isinstance(event, TimeoutError):
            return self._error(
                f"not done after {self._limit_s:g} s, while {self.phase}",
                f"give it more time with {self._type.time_option}, or see what it hangs in",
            )
        how, cause = self._process.death(tuple(self._type.native_code(self._job)))
        return self._error(f"its process {how} in phase {self.phase!r}", cause)

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
        status, seconds = self._process.stop(), time.monotonic() - self._began
        number = self._process.number
        _log.info("process %d, %s: stopped after %.1f s (status %d)", number, self._doing, seconds, status)
        if printed:
            heard("stderr", "info", f"process {number} printed: {printed}")
