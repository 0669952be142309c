"""A worker process: runs one job and reports on a pipe.

    main() of this module, LEVEL      one job as a JSON line on standard input, messages as JSON lines on
                                      standard output; whatever native code prints goes to standard error

What is logged from LEVEL on, a number of Python's `logging`, is among the messages.

Native code can crash, hang or leave the CUDA context unusable: here it takes only its own job along. The
worker ends when its standard input closes, so it never outlives the process that started it.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import BinaryIO, NoReturn

import msgspec

from trtopt.errors import TrtoptError
from trtopt.logs import relay
from trtopt.processes import end_with_parent
from trtopt.records import to_json
from trtopt.workers.jobs import Job, type_of
from trtopt.workers.protocol import Failure, Message, Progress, Result


def run(job: Job, send: Callable[[Message], None]) -> Result:
    """Run one job in this process; progress goes to `send`."""

    def progress(phase: str, fraction: float | None) -> None:
        send(Progress(phase=phase, fraction=fraction))

    return type_of(job).run(job, progress)


def main() -> None:
    """Read a job, run it, report."""
    messages = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # native code prints to descriptor 1
    line = sys.stdin.buffer.readline()
    end_with_parent()
    send = sender(messages)
    relay(int(sys.argv[1]), send)
    gc.freeze()  # garbage is collected before each pass: not among what has been imported, which stays
    try:
        send(run(msgspec.json.decode(line, type=Job), send))
    except TrtoptError as error:
        send(Failure(error=type(error).__name__, problem=error.problem, remedy=error.remedy))
    except MemoryError:
        send(
            Failure(error="DeviceError", problem="out of host memory", remedy="use a smaller batch or model")
        )
    except BaseException:  # noqa: BLE001  (a fault of ours: the supervisor shows its last words)
        traceback.print_exc()
        _leave(1)
    _leave(0)


def sender(pipe: BinaryIO) -> Callable[[Message], None]:
    """What writes messages to a pipe, each whole, for any thread and for what logs in the midst of it.

    Garbage is collected whenever Python likes, and native code logs when its objects are destroyed.
    """
    guard = threading.RLock()

    def send(message: Message) -> None:
        with guard:
            _write(pipe, to_json(message, indent=None))

    return send


def _leave(status: int) -> NoReturn:
    """Without the interpreter's teardown: native libraries can crash in it, and a thread waits for input."""
    sys.stderr.flush()
    os._exit(status)


def _write(pipe: BinaryIO, line: bytes) -> None:
    view = memoryview(line)
    while view:
        view = view[pipe.write(view) :]
