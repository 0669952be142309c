"""The process in which ONNX Runtime runs models for this one: started on first use, and after a death."""

from __future__ import annotations

import atexit
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trtopt.files.atomic import cannot_write, scratch_folder
from trtopt.onnxio.disk_space import check_temporary_room
from trtopt.onnxio.model_file import PACKED_FILE, WEIGHTS_FILE
from trtopt.processes.child import Child
from trtopt.processes.messages import Frame, frame, receive, send


@contextmanager
def model_without_weights(model: bytes, packed: Sequence[NDArray[Any]]) -> Iterator[Path]:
    """The model in its own file, `packed` weights in another next to it, while it is being loaded.

    ONNX Runtime copies weights given by `add_external_initializers`. Those given by `add_initializer` it
    shares, but the file that the model names for a weight must exist: an empty one does. What it reads
    from a file it maps.
    """
    check_temporary_room(sum(array.nbytes for array in packed))
    with scratch_folder() as folder:
        path = folder / "model.onnx"
        try:
            (folder / WEIGHTS_FILE).touch()
            with (folder / PACKED_FILE).open("wb") as file:
                file.writelines(array.data for array in packed)
            path.write_bytes(model)
        except OSError as error:
            raise cannot_write(folder, error) from None
        yield path


class Mapped(msgspec.Struct, frozen=True):
    """An array that lies in a file, whose pages all processes share."""

    path: str
    offset: int
    dtype: str
    shape: tuple[int, ...]


class Open(msgspec.Struct, frozen=True, tag=True):
    """Open the model in the file at `path`, else one in memory.

    `held` are weights that come along, `mapped` those that lie in files.
    """

    session: int
    model: Any
    path: str
    held: dict[str, Any]
    mapped: dict[str, Mapped]
    prepack: bool


class Run(msgspec.Struct, frozen=True, tag=True):
    """Run an open model on inputs by name."""

    session: int
    feed: dict[str, Any]


class Close(msgspec.Struct, frozen=True, tag=True):
    """Give models back; there is no reply."""

    sessions: list[int]


Request = Open | Run | Close


class Answered(msgspec.Struct, frozen=True, tag=True):
    """By name, the types of the inputs of a model that is open now, or the outputs of a run."""

    values: dict[str, Any]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """ONNX Runtime's error message."""

    message: str


Reply = Answered | Refused


_LAST_WORDS = 2000
_STOPPED_S = 60.0
_ANNOUNCED_S = 60.0
_ANSWER_S = 3600.0
"""How long one request may take: beyond that a model is taken to run for ever."""
_log = logging.getLogger(__name__)


class OrtRefusal(Exception):
    """ONNX Runtime cannot load or run a model; its own words."""


class OrtDeath(Exception):
    """The process died over a model: how, and what is known of why."""

    def __init__(self, how: str, cause: str) -> None:
        super().__init__(how, cause)
        self.how, self.cause = how, cause


class OrtProcess:
    """A process that holds ONNX Runtime's sessions by number; any thread may call it, one at a time.

    What cannot be done raises OrtRefusal or OrtDeath.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._dropped: deque[int] = deque()
        self._next = 0
        self._owner = os.getpid()
        self._process = Child("trtopt.device.ort.server")
        self.death: OrtDeath | None = None

    def open(
        self,
        model: bytes | Path,
        weights: Mapping[str, NDArray[Any]],
        packed: Sequence[NDArray[Any]],
        *,
        prepack: bool,
    ) -> tuple[int, dict[str, str]]:
        """Open a model in memory or a file; its number, and the types of its inputs by name."""
        places = {name: _place_of(array) for name, array in weights.items()}
        number = self._number()
        with ExitStack() as resources:
            if isinstance(model, bytes) and (weights or packed):
                model = resources.enter_context(model_without_weights(model, packed))
            in_memory = model if isinstance(model, bytes) else b""
            request = Open(
                session=number,
                model=np.frombuffer(in_memory, np.uint8),
                path="" if isinstance(model, bytes) else str(model.absolute()),
                held={name: array for name, array in weights.items() if places[name] is None},
                mapped={name: place for name, place in places.items() if place is not None},
                prepack=prepack,
            )
            return number, self._request(request)

    def run(self, session: int, feed: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name."""
        return self._request(Run(session=session, feed=dict(feed)))

    def drop(self, session: int) -> None:
        """Release a session, now or after the present request: finalizers may call this at any time."""
        self._dropped.append(session)
        self._send_dropped()

    def _number(self) -> int:
        with self._guard:
            self._next += 1
            return self._next

    def _send_dropped(self) -> None:
        while self._dropped and self._owner == os.getpid() and self._guard.acquire(blocking=False):
            try:
                numbers = [self._dropped.popleft() for _ in range(len(self._dropped))]
                if numbers and self.death is None:
                    with suppress(OSError):
                        send(self._process.channel, frame(Close(sessions=numbers)))
            finally:
                self._guard.release()

    def _request(self, request: Open | Run) -> dict[str, Any]:
        try:
            framed = frame(request)
        except (TypeError, ValueError) as error:
            raise OrtRefusal(f"it takes arrays of numbers and text alone: {error}") from None
        with self._guard:
            reply = self._exchange(framed)
        self._send_dropped()
        if isinstance(reply, Refused):
            raise OrtRefusal(reply.message)
        return reply.values

    def _exchange(self, framed: Frame) -> Reply:
        if self.death is not None or self._owner != os.getpid():
            raise self.death or OrtDeath("belongs to another process", "open the model again after a fork")
        try:
            send(self._process.channel, framed)
            self._await_answer()
            reply: Reply = receive(self._process.channel, Reply)
            return reply
        except (EOFError, OSError):
            self.death = self.death or self._why()
            raise self.death from None
        except OrtDeath as overdue:
            self.death = overdue
            self.stop()
            raise
        except BaseException:  # what it answers now, nobody has asked for
            self.interrupt()
            raise

    def _await_answer(self) -> None:
        """Wait for it to answer or die, and say so if it takes long."""
        answer = select.poll()
        answer.register(self._process.channel, select.POLLIN)
        if answer.poll(_ANNOUNCED_S * 1000):
            return
        _log.warning("ONNX Runtime has been busy with the model for %.0f s; Ctrl-C ends it", _ANNOUNCED_S)
        if not answer.poll(max(0.0, _ANSWER_S - _ANNOUNCED_S) * 1000):
            raise OrtDeath(
                f"was ended: it had not answered after {_ANSWER_S:.0f} s",
                "see whether the model has a Loop that does not end; give smaller samples with --data",
            )

    def _why(self) -> OrtDeath:
        if self._process.wait(_STOPPED_S) is None:
            death = OrtDeath("stopped answering", "run it again")
        else:
            how, cause = self._process.death(["ONNX Runtime"])
            death = OrtDeath(how, f"{cause}\n{self._process.printed()[-_LAST_WORDS:]}".strip())
        self.stop()
        return death

    def interrupt(self) -> None:
        """End what it does, for whichever thread: there with an OrtDeath."""
        self.death = OrtDeath("was ended by an interruption", "run it again")
        self.stop()

    def stop(self) -> None:
        if self._owner == os.getpid():
            self._process.stop()


def _place_of(array: NDArray[Any]) -> Mapped | None:
    """Where a mapped array lies in its file; None for one in memory, or whose file has gone."""
    root: Any = array
    while isinstance(root, np.ndarray) and not (isinstance(root, np.memmap) and root.filename is not None):
        root = root.base
    if not isinstance(root, np.memmap) or not array.flags.c_contiguous or not array.size:
        return None
    while isinstance(root.base, np.memmap):
        root = root.base  # a slice of a map has the whole map's offset
    offset = root.offset + array.ctypes.data - root.ctypes.data
    if not os.path.isfile(root.filename) or os.path.getsize(root.filename) < offset + array.nbytes:
        return None
    return Mapped(os.path.abspath(root.filename), offset, array.dtype.name, array.shape)


_starting = threading.Lock()
_current: OrtProcess | None = None


def ort_process() -> OrtProcess:
    """The one process, started if none lives."""
    global _current
    with _starting:
        if _current is None or _current.death is not None:
            _current = OrtProcess()
        return _current


def _forget() -> None:
    """In the child of a fork: the process belongs to the parent."""
    global _current, _starting
    _current, _starting = None, threading.Lock()


def interrupt_ort_process() -> None:
    """End what it does; the next request starts another."""
    if _current is not None:
        _current.interrupt()


os.register_at_fork(after_in_child=_forget)
atexit.register(interrupt_ort_process)
