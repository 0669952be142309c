"""A worker process: runs one job, and reports on its channel.

Native code can crash, hang or leave the CUDA context unusable: here it takes only its own job along.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from socket import socket
from typing import Any

from trtopt.errors import DeviceError, TrtoptError
from trtopt.logs import relay
from trtopt.processes.messages import frame_for_reading, receive, send
from trtopt.records import Job
from trtopt.workers.jobs import ANY_JOB, type_of
from trtopt.workers.protocol import Done, Failure, Message, Progress


def main(channel: socket, level: str) -> None:
    """Read a job, run it, report; what is logged from `level` on, a number of `logging`, is reported too."""
    job: Job[Any] = receive(channel, ANY_JOB)
    report = reporter(channel)
    relay(int(level), report)

    def progress(phase: str, fraction: float | None) -> None:
        report(Progress(phase=phase, fraction=fraction))

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
