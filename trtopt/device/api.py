"""What the rest of trtopt needs of a device: small protocols, nothing else.

A `Device` creates streams, events and buffers. A `Target` turns an engine file into a `Session`; a
session's `Context` runs it with fixed shapes. Addresses and streams are plain integers, so CUDA bindings can
be mixed. An `EngineBuilder` makes the engine file.

A method that answers None here is what a backend does that has nothing of the kind.

Ownership: the caller closes the buffers, events, streams, graphs, contexts and sessions that it creates, in
reverse order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trtopt.device.nvtx import UNMARKED, NvtxMarks
from trtopt.errors import DeviceMemoryError
from trtopt.records import (
    AllocationEvent,
    AllocationKind,
    Backend,
    BuildPlan,
    ClockReading,
    ClockReference,
    DeviceInfo,
    LayerPass,
    LayerTactic,
    Shape,
    ShapeRange,
    TensorSpec,
    TracedRun,
)
from trtopt.records.tensors import stored_shape

Inputs = Mapping[str, NDArray[np.generic]]
"""Input data by the input's name."""


class Held(Protocol):
    """What its maker releases."""

    def close(self) -> None:
        """Give it back; may be called twice."""


class Event(Held, Protocol):
    """A mark on a stream."""

    def record(self, stream: Stream) -> None:
        """Mark the stream's present end."""

    def wait(self) -> None:
        """Let the host wait until the mark is reached."""

    def reached(self) -> bool:
        """Whether the mark has been reached; never waits."""

    def elapsed_ms(self, since: Event) -> float:
        """Device milliseconds from `since` to this mark; both must have been reached."""


class Stream(Held, Protocol):
    """An ordered queue of device work."""

    handle: int
    """The stream as TensorRT and other bindings take it."""

    def wait_for(self, event: Event) -> None:
        """Let the stream's later work wait for `event`."""

    def synchronize(self) -> None:
        """Let the host wait until the stream is empty."""


class Releasable:
    """What is released, once, by `release`; unless somebody else does it."""

    def __init__(self, release: Callable[[], object] | None = None) -> None:
        self._release = release

    def close(self) -> None:
        """Release it; what has failed once is not tried again."""
        release, self._release = self._release, None
        if release is not None:
            release()


class DeviceBuffer(Releasable):
    """Memory as the device sees it."""

    def __init__(self, address: int, nbytes: int, release: Callable[[], object] | None = None) -> None:
        super().__init__(release)
        self.address, self.nbytes = address, nbytes


class HostBuffer(DeviceBuffer):
    """Host memory, page-locked or pageable, whose bytes are `array`; its views end with it."""

    def __init__(self, array: NDArray[np.uint8], release: Callable[[], object] | None = None) -> None:
        super().__init__(int(array.ctypes.data), array.nbytes, release)
        self.array = array

    def close(self) -> None:
        """Give it back, and let go of the bytes."""
        self.array = np.empty(0, np.uint8)
        super().close()


class Graph(Releasable):
    """A captured sequence of device work; `launch` enqueues all of it where it was captured."""

    def __init__(self, launch: Callable[[], None], release: Callable[[], object]) -> None:
        super().__init__(release)
        self.launch = launch


class ClockSensor(Protocol):
    """Reads a device's clocks, power, temperature, and throttle reasons.

    It never fails: what it cannot read is None. One that cannot read the SM clock reads nothing else either.
    """

    @property
    def reference(self) -> ClockReference:
        """What to compare the SM clock with, and what cannot be read."""

    def read(self, at_ms: float) -> ClockReading:
        """A reading of now, which is `at_ms` on the caller's clock. Takes the host about a millisecond."""


class ActivityRecorder(Held, Protocol):
    """The device's tracer: records what the device runs, in this process, from its opening to `close`."""

    def record(self, work: Callable[[], None]) -> TracedRun:
        """What the device ran for `work`, which must wait for it to end.

        Raises:
            DeviceError: the records cannot be read.
        """

    def dropped(self) -> int:
        """How many records were lost for want of room since the last call."""


@dataclass(frozen=True)
class Holder:
    """A process that has device memory; `nbytes` is None where the driver does not report how much.

    In a container the driver may number processes as the host does.
    """

    pid: int
    nbytes: int | None


@dataclass(frozen=True)
class DeviceMemory:
    """A device's memory: what is free, what there is, and who has the rest if known."""

    free_bytes: int
    total_bytes: int
    holders: tuple[Holder, ...] = ()


_ALIGNMENT = 64
"""Bytes: a cache line, as in ONNX Runtime's own allocator. Products at numpy's 16 take up to 3 % longer."""
_WAKE_S = 1e-3
"""A sleeping thread wakes late by some fraction of it: so long before the time the host stays awake."""


class Device(Held, Protocol):
    """A place where sessions run."""

    info: DeviceInfo
    """What it is."""

    is_synchronous: bool
    """Whether work is done once it has been handed over, so that nothing need be awaited."""

    profilers: NvtxMarks = UNMARKED
    """What profilers are shown of it."""

    now: Callable[[], float] = staticmethod(time.perf_counter)
    """Host seconds on a monotonic clock of the device's choice."""

    def stream(self) -> Stream:
        """A new stream of one's own, never the default one."""

    def event(self, *, blocking: bool = False, timed: bool = True) -> Event:
        """A new event; with `blocking` the waiting host thread sleeps, else it spins.

        One that is not `timed` has no `elapsed_ms`, and costs the device less.
        """

    def device_buffer(self, nbytes: int) -> DeviceBuffer:
        """Device memory.

        Raises:
            DeviceMemoryError: there is not that much left.
        """

    def pinned_buffer(self, nbytes: int) -> HostBuffer:
        """Page-locked host memory."""

    def pageable_buffer(self, nbytes: int) -> HostBuffer:
        """Host memory as the system gives it, which the device cannot copy from or to by itself."""
        try:
            whole = np.empty(nbytes + _ALIGNMENT, np.uint8)
        except MemoryError:
            raise DeviceMemoryError(
                f"out of host memory: allocating {nbytes / 2**20:.1f} MiB", "use a smaller batch"
            ) from None
        start = -whole.ctypes.data % _ALIGNMENT
        return HostBuffer(whole[start : start + nbytes])

    def copy_to_device(self, target: DeviceBuffer, source: HostBuffer, stream: Stream) -> None:
        """Enqueue a copy of the whole buffer; from pageable memory the host copies it first."""

    def copy_to_host(self, target: HostBuffer, source: DeviceBuffer, stream: Stream) -> None:
        """Enqueue a copy of the whole buffer; into pageable memory the host waits until it is done."""

    def copy_on_device(self, target: DeviceBuffer, source: DeviceBuffer, stream: Stream) -> None:
        """Enqueue a copy of the whole of `source`, which may be anybody's memory on this device."""

    def capture(self, stream: Stream, work: Callable[[], None]) -> Graph:
        """Record what `work` enqueues on `stream`, without running it.

        Raises:
            GraphCaptureError: the device, the binding or the work does not allow it, by name.
        """

    def wait_any(self, events: Sequence[Event], until_s: float) -> None:
        """Let the host wait until one of `events` is reached, or until `now()` is `until_s`.

        Drivers can only wait for one event. The host sleeps only where there is none.
        """
        if not events:
            time.sleep(max(0.0, until_s - self.now() - _WAKE_S))
        while self.now() < until_s:
            for event in events:
                if event.reached():
                    return

    def adopt_thread(self) -> AbstractContextManager[None]:
        """Make the device usable in the calling host thread, another one than it was opened in."""
        return nullcontext()

    def used_bytes(self) -> int | None:
        """Device memory in use by everybody, as the driver reports it; None if unknown."""
        return None

    def device_memory(self) -> DeviceMemory | None:
        """What of its memory is free, and who has the rest. Takes milliseconds.

        None if unknown: integrated GPUs share the host's memory, where the reclaimable page cache counts as
        used.
        """
        return None

    def clock_sensor(self) -> ClockSensor:
        """A sensor of its clocks; if they cannot be read, one whose reference has the reason."""

    def activity_recorder(self, *, ranges: bool = False) -> ActivityRecorder:
        """Start recording kernels, copies and memsets; must be open before a graph to record is captured.

        With `ranges` also the driver's calls, and NVTX ranges where they reach the tracer.

        Raises:
            UsageError: the device runs no kernels.
            DeviceError: its library is not installed, no permission, or another profiler uses it.
        """

    def annotate(self, name: str) -> AbstractContextManager[object]:
        """Show profilers what the calling thread does meanwhile, if NVTX ranges are on."""
        return self.profilers.range(name)

    def captured(self) -> AbstractContextManager[None]:
        """Let profilers that wait for it (cudaProfilerStart, -Stop) capture what happens meanwhile, if on."""
        return nullcontext()


@dataclass(frozen=True)
class Binding:
    """One input or output of a context, with its concrete shape, and the layout of that in memory."""

    name: str
    dtype: np.dtype[np.generic]
    shape: Shape
    is_input: bool
    layout: str = "nchw"
    is_data_dependent: bool = False
    """An output whose size is known only after running: it has no buffer, and `shape` is but an example."""

    @property
    def stored_shape(self) -> Shape:
        """The shape of the array in memory: `shape` unless the format is vectorised."""
        return stored_shape(self.layout, self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the array in memory; at least 1, so that empty tensors have an address."""
        return max(1, int(np.prod(self.stored_shape, dtype=np.int64)) * self.dtype.itemsize)

    def view(self, buffer: HostBuffer) -> NDArray[np.generic]:
        """A buffer's memory as the array that it holds."""
        nbytes = self.nbytes if np.prod(self.stored_shape) else 0
        held: NDArray[np.generic] = buffer.array[:nbytes].view(self.dtype)
        return held.reshape(self.stored_shape)


class SizedOutput(DeviceBuffer):
    """Where an inference left an output of data-dependent size, dense, which the context releases."""

    def __init__(self, address: int, dtype: np.dtype[np.generic], shape: Shape) -> None:
        super().__init__(address, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        self.dtype, self.shape = dtype, shape


class Context(Held, Protocol):
    """An engine ready to run with fixed shapes."""

    bindings: tuple[Binding, ...]
    """All inputs and outputs."""

    def bind(self, buffers: Mapping[str, DeviceBuffer]) -> None:
        """Use these buffers from the next enqueue on; every binding of fixed size needs one."""

    def enqueue(self, stream: Stream) -> None:
        """Enqueue one inference."""
        self.launcher(stream)()

    def launcher(self, stream: Stream) -> Callable[[], None]:
        """What enqueues one inference with what is bound now: the library's call, and a look at its answer.

        It is made for timed regions: what can be chosen or looked up beforehand is. Where something else has
        been bound since, bind the same again before calling it.
        """

    def sized_outputs(self) -> Mapping[str, SizedOutput]:
        """The outputs of data-dependent size that the last enqueue left, by name."""

    def report_layers(self, report: Callable[[str, float], None], *, on_request: bool = False) -> None:
        """From now on call `report(layer name, ms)` for every layer of every run; slows the runs.

        With `on_request` runs only take the times, those of graphs captured from now on too;
        `request_layers` has them reported.
        """

    def request_layers(self) -> bool:
        """Report the layers of the last run, which must have ended; False where there are none to report."""
        return False

    def emit_ranges(self) -> None:
        """From now on show profilers each layer of an enqueue as an NVTX range, if the backend can."""

    def inspect(self) -> str | None:
        """The engine's layers at this context's shapes, in the backend's own JSON; None where it has none."""
        return None


class Session(Held, Protocol):
    """A loaded engine."""

    device: Device
    """Where it runs."""

    inputs: tuple[TensorSpec, ...]
    """The engine's inputs, with the types the engine takes."""

    outputs: tuple[TensorSpec, ...]
    """The engine's outputs."""

    profiles: tuple[Mapping[str, ShapeRange], ...]
    """What each optimisation profile admits, by input; empty for a backend that has none."""

    @property
    def device_memory_bytes(self) -> int | None:
        """What a context needs for activations, as the engine states it; None if unknown."""
        return None

    def layer_pass(self, shapes: Mapping[str, Shape], data: Inputs, runs: int) -> LayerPass | None:
        """Layer times of a backend that profiles whole sessions; None where a context reports them."""
        return None

    def context(self, shapes: Mapping[str, Shape]) -> Context:
        """A new execution context for these input shapes.

        Raises:
            UsageError: the engine does not admit a shape; names what it admits.
        """


class Target(Held, Protocol):
    """A backend on a device, which it closes: loads engines."""

    device: Device
    """Where its sessions run."""

    backend: Backend
    """Flavour and version."""

    def load(self, engine: bytes, *, track: AllocationTracker | None = None) -> Session:
        """Deserialise an engine that the caller has vouched for; `track` follows its allocations.

        Raises:
            IncompatibleEngineError: made by another flavour or version, or for another GPU.
            UsageError: `track` is given and the backend has no allocator to track.
        """


class AllocationTracker:
    """Collects allocation events; `phase` labels the ones to come. Not tied to any backend.

    `clock` gives seconds; events carry milliseconds since the tracker was made.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._start = clock()
        self._guard = Lock()
        self.phase = "load"
        self.events: list[AllocationEvent] = []

    def add(self, kind: AllocationKind, size_bytes: int, address: int, stream: int | None = None) -> None:
        """Record one call; those of several threads stand in the order of their times."""
        with self._guard:
            event = AllocationEvent(
                at_ms=(self._clock() - self._start) * 1e3,
                kind=kind,
                size_bytes=size_bytes,
                address=address,
                phase=self.phase,
                stream=stream,
            )
            self.events.append(event)


ProgressSink = Callable[[str, float | None], None]
"""Receives the progress of a build: the phase in words, and how much of the whole is done, or None."""


@dataclass(frozen=True)
class BuildInput:
    """What a builder makes an engine of; `types` are the element types that the graph contains.

    `tactics` are to be held, or what layers get is only recorded if there are none; None: neither.
    """

    onnx: Path
    types: tuple[str, ...]
    plan: BuildPlan
    timing_cache: bytes | None
    tactics: tuple[LayerTactic, ...] | None = None


@dataclass(frozen=True)
class BuiltEngine:
    """What a builder returns; the caller writes it to disk."""

    engine: bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    config: dict[str, str]
    timing_cache: bytes | None
    timing_cache_hits: int | None = None
    inspector: str | None = None
    """The engine's layers in the backend's own JSON, where it gives them without running the engine."""
    tactics: tuple[LayerTactic, ...] = ()
    """Those that layers got, if they were to be held or recorded."""


LogSink = Callable[[str, str], None]
"""Receives the backend's log: severity (`error`, `warning`, `info`, `verbose`) and message."""


class EngineBuilder(Protocol):
    """A backend that builds engines."""

    backend: Backend
    """Flavour and version."""

    device: DeviceInfo
    """What it builds for; kind `none` when it builds without a device."""

    def device_memory(self) -> DeviceMemory | None:
        """The memory of the device that it builds on; None where it needs none, or if unknown."""
        return None

    max_opset: int | None
    """The newest opset of ONNX's own operators that it reads; None where it checks that itself."""

    uses_timing_cache: bool
    """Whether a timing cache has any effect here."""

    def build(self, given: BuildInput, progress: ProgressSink, log: LogSink) -> BuiltEngine:
        """Build one engine.

        Raises:
            UnsupportedOpError: the parser does not know an operator; names it and its node.
            UsageError: a setting that this flavour does not have.
            TimingCacheError: TensorRT refuses the cache.
            DeviceMemoryError: the builder ran out of device memory.
            BuildError: a reproducible build that the cache did not decide; anything else, with the builder's
                last words.
        """

    def merge_timing_caches(self, ours: bytes, theirs: bytes) -> bytes:
        """One cache with the entries of both; `theirs` is what another build has saved meanwhile."""
