"""A worker process: runs one job, and reports on its channel, in the messages that stand here.

Native code can crash, hang or leave the CUDA context unusable: here it takes only its own job along.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from socket import socket
from typing import Any, Generic

from trtopt.errors import DeviceError, TrtoptError, rebuild
from trtopt.logs import Logged, relay
from trtopt.processes.messages import frame_for_reading, receive, send
from trtopt.records import Job, Record
from trtopt.records.base import JobResult
from trtopt.workers.jobs import ANY_JOB, type_of


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
