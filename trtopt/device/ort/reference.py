"""ONNX Runtime on the CPU as the numerical reference: a file goes in, arrays come out, nothing is timed.

Models run in a process of their own, which is started on first use, and again after a death: that ONNX
Runtime crashes on one is an error. `device.ort.server` is what runs there.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trtopt.errors import ModelError
from trtopt.files.atomic import scratch_folder, writing
from trtopt.onnxio.disk_space import check_temporary_room
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.onnxio.graph_walk import graphs_of, opset_of
from trtopt.onnxio.model_file import PACKED_FILE, WEIGHTS_FILE
from trtopt.processes.child import Child
from trtopt.processes.messages import Frame, frame, receive, send

if TYPE_CHECKING:
    import onnx


Arrays = dict[str, NDArray[Any]]
ONNX_NUMBERS = {"bfloat16": 16, "float8_e4m3fn": 17, "float8_e5m2": 19}
"""What ONNX calls the types that NumPy lacks, which ONNX Runtime takes by number alone."""
_FLOATS = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(bfloat16)": "bfloat16"}


def open_reference(path: Path) -> Callable[[Arrays], Arrays]:
    """What runs an ONNX file with no graph optimisation, so that failures name the file's own nodes."""
    return Unoptimised(path, prepack=True).run


class CannotRun(ModelError):
    """ONNX Runtime cannot load or run a model on the inputs that it was given."""


class CannotLoad(CannotRun):
    """ONNX Runtime cannot load a model, whatever its inputs: of no use with other data."""


class OperatorMissing(CannotLoad):
    """The model has an operator that ONNX Runtime has not."""


class Crashed(CannotRun):
    """The process in which ONNX Runtime loaded or ran a model died: how, and what is known of why."""

    def __init__(self, how: str, cause: str, doing: str) -> None:
        self.how, self.cause, self.doing = how, cause, doing
        super().__init__(f"ONNX Runtime cannot run the model: its process {how} while {doing}", cause)


@contextmanager
def crash_context(what: str) -> Iterator[None]:
    """Where a model crashes ONNX Runtime, add to the error which model it is, or on which samples."""
    try:
        yield
    except Crashed as crash:
        raise Crashed(crash.how, crash.cause, f"{crash.doing} ({what})") from None


class Unoptimised:
    """A model in memory or in a file, opened to run unoptimised.

    Weights are initializers that the model has in the file `WEIGHTS_FILE` of `model_file`, `packed` the bytes
    of its PACKED_FILE. What is mapped from files is shared, not copied, and may be deleted once it is open.
    `prepack` lets ONNX Runtime keep a second copy of weights in the order that its kernels like best.
    """

    def __init__(
        self,
        model: bytes | Path,
        weights: Mapping[str, NDArray[Any]] | None = None,
        packed: Sequence[NDArray[Any]] = (),
        *,
        prepack: bool = False,
    ) -> None:
        given = weights or {}
        places = {name: _place_of(array) for name, array in given.items()}
        self._process = ort_process()
        self._number = next(self._process.numbers)
        with ExitStack() as resources:
            file = model
            if isinstance(model, bytes) and (weights or packed):
                file = resources.enter_context(model_without_weights(model, packed))
            request = Open(
                session=self._number,
                model=np.frombuffer(file if isinstance(file, bytes) else b"", np.uint8),
                path="" if isinstance(file, bytes) else str(file.absolute()),
                held={name: array for name, array in given.items() if places[name] is None},
                mapped={name: place for name, place in places.items() if place is not None},
                prepack=prepack,
            )
            reply = self._process.answer(request, "loading it")
        if isinstance(reply, Refused):
            raise _cannot_load(reply.message, model)
        self._inputs: dict[str, str] = reply.values
        weakref.finalize(self, self._process.drop, self._number).atexit = False

    def fit(self, feed: Mapping[str, NDArray[Any]]) -> Arrays:
        """Inputs meant for another precision of this model, in the width that this one takes."""
        return {
            name: array.astype(numpy_dtype(_FLOATS[self._inputs[name]]), copy=False)
            if self._inputs.get(name) in _FLOATS
            else array
            for name, array in feed.items()
        }

    def run(self, feed: Mapping[str, NDArray[Any]]) -> Arrays:
        """The outputs by name."""
        reply = self._process.answer(Run(session=self._number, feed=dict(feed)), "running it")
        if isinstance(reply, Refused):
            problem = f"ONNX Runtime cannot run the model: {reply.message.splitlines()[0]}"
            raise CannotRun(problem, "see which node it names")
        return reply.values


def _cannot_load(told: str, model: bytes | Path) -> CannotLoad:
    import onnx

    content = model.read_bytes() if isinstance(model, Path) else model
    if missing := missing_operator(told, onnx.ModelProto.FromString(content)):
        return OperatorMissing(*missing)
    problem = f"ONNX Runtime cannot run the model: {told.splitlines()[0]}"
    return CannotLoad(problem, "see what it names, and export the model again")


_UNKNOWN = re.compile(r"(\w+)\(-?\d+\) is not a registered function/op|No Op registered for (\w+)")
_UNIMPLEMENTED = re.compile(r"Could not find an implementation for (\w+)\(\d+\)")
_OLDEST_OPSET = 7
"""ONNX Runtime has every standard operator of newer ones, though not for every type."""


def missing_operator(told: str, model: onnx.ModelProto) -> tuple[str, str] | None:
    """If its message says that ONNX Runtime lacks an operator: which, with its first node, and the remedy."""
    old, unknown = _UNIMPLEMENTED.search(told), _UNKNOWN.search(told)
    if old and opset_of(model) < _OLDEST_OPSET:
        operator, version = old[1], f" of opset {opset_of(model)}"
        remedy = "export the model again with opset 13 or newer"
    elif unknown:
        operator, version = unknown[1] or unknown[2], ""
        remedy = "build with a TensorRT that has a plugin for it, or replace the operator"
    else:
        return None
    nodes = (node for graph in graphs_of(model.graph) for node in graph.node)
    name = next((node.name for node in nodes if node.op_type == operator), "")
    return f"ONNX Runtime has no operator {operator!r}{version} (node {name!r})", remedy


# ── its process ─────────────────────────────────────────────────────────────────────────────────────────

_LAST_WORDS = 2000
_STOPPED_S = 60.0
_ANNOUNCED_S = 60.0
_ANSWER_S = 3600.0
"""How long one request may take: beyond that a model is taken to run for ever."""
_log = logging.getLogger(__name__)


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


class OrtProcess:
    """A process that holds ONNX Runtime's sessions by number; any thread may call it, one at a time."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._dropped: deque[int] = deque()
        self._owner = os.getpid()
        self._process = Child("trtopt.device.ort.server")
        self.numbers = count(1)
        self.death: tuple[str, str] | None = None
        """How it died, and what is known of why."""

    def answer(self, request: Open | Run, doing: str) -> Reply:
        """Its answer to a request; a `Crashed` if it dies over it, or has died."""
        try:
            framed = frame(request)
        except (TypeError, ValueError) as error:
            return Refused(f"it takes arrays of numbers and text alone: {error}")
        with self._guard:
            reply = self._exchange(framed, doing)
        self._send_dropped()
        return reply

    def drop(self, session: int) -> None:
        """Release a session, now or after the present request: finalizers may call this at any time."""
        self._dropped.append(session)
        self._send_dropped()

    def _send_dropped(self) -> None:
        while self._dropped and self._owner == os.getpid() and self._guard.acquire(blocking=False):
            try:
                numbers = [self._dropped.popleft() for _ in range(len(self._dropped))]
                if numbers and self.death is None:
                    with suppress(OSError):
                        send(self._process.channel, frame(Close(sessions=numbers)))
            finally:
                self._guard.release()

    def _exchange(self, framed: Frame, doing: str) -> Reply:
        if self.death is None and self._owner != os.getpid():
            raise Crashed("belongs to another process", "open the model again after a fork", doing)
        if self.death is None:
            try:
                send(self._process.channel, framed)
                if self._is_answering():
                    reply: Reply = receive(self._process.channel, Reply)
                    return reply
                self.death = (
                    f"was ended: it had not answered after {_ANSWER_S:.0f} s",
                    "see whether the model has a Loop that does not end; give smaller samples with --data",
                )
                self.stop()
            except (EOFError, OSError):
                self.death = self.death or self._why()
            except BaseException:  # what it answers now, nobody has asked for
                self.interrupt()
                raise
        raise Crashed(*self.death, doing)

    def _is_answering(self) -> bool:
        """Wait for it to answer or die, and say so if it takes long; False where it takes too long."""
        answer = select.poll()
        answer.register(self._process.channel, select.POLLIN)
        if answer.poll(_ANNOUNCED_S * 1000):
            return True
        _log.warning("ONNX Runtime has been busy with the model for %.0f s; Ctrl-C ends it", _ANNOUNCED_S)
        return bool(answer.poll(max(0.0, _ANSWER_S - _ANNOUNCED_S) * 1000))

    def _why(self) -> tuple[str, str]:
        how, cause = "stopped answering", "run it again"
        if self._process.wait(_STOPPED_S) is not None:
            how, cause = self._process.death(["ONNX Runtime"])
            cause = f"{cause}\n{self._process.printed()[-_LAST_WORDS:]}".strip()
        self.stop()
        return how, cause

    def interrupt(self) -> None:
        """End what it does, for whichever thread: there with a `Crashed`."""
        self.death = "was ended by an interruption", "run it again"
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
        with writing(folder):
            (folder / WEIGHTS_FILE).touch()
            with (folder / PACKED_FILE).open("wb") as file:
                file.writelines(array.data for array in packed)
            path.write_bytes(model)
        yield path


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


def ort_value(array: NDArray[Any]) -> Any:
    """An OrtValue over the array's own memory; types that NumPy lacks are handed over as integers."""
    import onnxruntime

    number = ONNX_NUMBERS.get(array.dtype.name)
    if number is None:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    bits = np.asarray(array, order="C").view(f"u{array.dtype.itemsize}")
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, number)
