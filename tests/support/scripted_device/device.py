"""A scripted device: virtual time, durations from a script, failures on demand.

It ships with trtopt so that the measuring loop, the stopping rules and the order of teardown can be tested
without hardware, and so can code built on `trtopt.measure`.

Streams are timelines: work starts when both the host has enqueued it and the stream's earlier work is done.
The host's clock, one for every host thread, advances only by scripted enqueue times and by waiting. Every
call is written to `calls`, every mark for profilers to `marks`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from tests.support.scripted_device.clocks import ScriptedSensor
from tests.support.scripted_device.parts import (
    Owned,
    ScriptedBuffer,
    ScriptedEvent,
    ScriptedGraph,
    ScriptedStream,
    is_pageable,
    run_on,
    scripted_stream,
)
from tests.support.scripted_device.script import Script, then_last
from tests.support.scripted_device.virtual_time import HostClocks, Shared
from trtopt.device.api import (
    AllocationTracker,
    Binding,
    ClockSensor,
    DeviceBuffer,
    DeviceMemory,
    Event,
    HostBuffer,
    Inputs,
    SizedOutput,
    Stream,
)
from trtopt.device.clocks import UnknownClocks
from trtopt.device.nvtx import UNMARKED
from trtopt.errors import DeviceError, DeviceMemoryError, GraphCaptureError
from trtopt.records import Backend, DeviceInfo, Shape, ShapeRange, TensorSpec, TracedRun


class ScriptedDevice:
    """See `device.api.Device`. `open` counts what has been handed out and not closed."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        self._clocks = HostClocks()
        self._guard = threading.Lock()
        self.calls: list[str] = []
        self.emits_ranges = False
        self.marks: list[tuple[str, float]] = []  # what was marked, and when
        self.open = 0
        self.used = 0
        self.compute = Shared(then_last(self.script.compute_ms, 0.0))
        self.enqueue = Shared(then_last(self.script.enqueue_ms, 0.0))
        self.recorded: list[Callable[[], float]] | None = None  # ms, of what a graph being captured holds

    def call(self, name: str) -> None:
        """Write a call down, and fail if the script says so."""
        fail_at = self.script.fail_at
        with self._guard:
            self.calls.append(name)
            fails = fail_at is not None and fail_at[0] == name and fail_at[1] == self.calls.count(name)
        if fails:
            raise DeviceError(f"scripted failure of {name}", "the script asked for it")

    @property
    def info(self) -> DeviceInfo:
        """A scripted device."""
        return DeviceInfo(kind="scripted", name="scripted device", memory_bytes=self.script.memory_bytes)

    @property
    def host_s(self) -> float:
        """The calling thread's clock."""
        return self._clocks.now_s

    @host_s.setter
    def host_s(self, value: float) -> None:
        self._clocks.now_s = value

    is_synchronous = False
    profilers = UNMARKED

    def now(self) -> float:
        """Virtual seconds."""
        return self.host_s

    def stream(self) -> ScriptedStream:
        """A new timeline."""
        self.call("stream")
        return ScriptedStream(self)

    def event(self, *, blocking: bool = False, timed: bool = True) -> ScriptedEvent:
        """A new event."""
        self.call("event")
        return ScriptedEvent(self, timed=timed)

    def device_buffer(self, nbytes: int) -> ScriptedBuffer:
        """Memory, as long as the script's device has some."""
        self.call("device_buffer")
        if self.used + nbytes > self.script.memory_bytes:
            raise DeviceMemoryError(f"out of memory: allocating {nbytes} bytes", "use a smaller batch")
        return ScriptedBuffer(self, nbytes, kind="device")

    def pinned_buffer(self, nbytes: int) -> ScriptedBuffer:
        """Host memory."""
        self.call("pinned_buffer")
        return ScriptedBuffer(self, nbytes)

    def pageable_buffer(self, nbytes: int) -> ScriptedBuffer:
        """Host memory."""
        self.call("pageable_buffer")
        return ScriptedBuffer(self, nbytes, kind="pageable")

    def copy_to_device(self, target: DeviceBuffer, source: HostBuffer, stream: Stream) -> None:
        """Takes the scripted time."""
        self.call("copy_to_device")
        if is_pageable(source):
            self.host_s += self.script.staging_ms / 1e3
        self._run_on(stream, self.script.h2d_ms)

    def copy_to_host(self, target: HostBuffer, source: DeviceBuffer, stream: Stream) -> None:
        """Takes the scripted time."""
        self.call("copy_to_host")
        self._run_on(stream, self.script.d2h_ms)
        if is_pageable(target):
            self.host_s = scripted_stream(stream).ready_s

    def copy_on_device(self, target: DeviceBuffer, source: DeviceBuffer, stream: Stream) -> None:
        """Takes the scripted time."""
        self.call("copy_on_device")
        self._run_on(stream, self.script.d2d_ms)

    def _run_on(self, stream: Stream, duration_ms: float) -> None:
        if self.recorded is not None:
            self.recorded.append(lambda: duration_ms)
        else:
            run_on(stream, duration_ms)

    def capture(self, stream: Stream, work: Callable[[], None]) -> ScriptedGraph:
        """A graph takes the time of what it captured."""
        self.call("capture")
        if not self.script.graphs:
            raise GraphCaptureError("the script's engine cannot be captured", "measure it with --no-graph")
        self.recorded = []
        try:
            work()
            return ScriptedGraph(self, stream, self.recorded)
        finally:
            self.recorded = None

    def wait_any(self, events: Sequence[Event], until_s: float) -> None:
        """The host's clock moves to the first of them."""
        self.call("wait_any")
        reached = [event.at_s for event in events if isinstance(event, ScriptedEvent)]
        self.host_s = max(self.host_s, min([until_s, *reached]))

    @contextmanager
    def adopt_thread(self) -> Iterator[None]:
        """Give the calling thread a clock."""
        self.call("adopt_thread")
        with self._clocks.adopt():
            yield

    def used_bytes(self) -> int | None:
        """Bytes handed out."""
        return self.used

    def device_memory(self) -> DeviceMemory | None:
        """What has not been handed out."""
        return DeviceMemory(
            self.script.memory_bytes - self.used, self.script.memory_bytes, self.script.holders
        )

    def clock_sensor(self) -> ClockSensor:
        """One that reads what the script says."""
        readings = tuple(self.script.clocks)
        return ScriptedSensor(self, readings) if readings else UnknownClocks("the script tells no clocks")

    def activity_recorder(self, *, ranges: bool = False) -> ScriptedRecorder:
        """One that sees the scripted kernels."""
        self.call("activity_recorder")
        return ScriptedRecorder(self, ranges=ranges)

    @contextmanager
    def annotate(self, name: str) -> Iterator[None]:
        """Write down when it begins and ends."""
        self.marks.append((f"begin {name}", self.host_s))
        try:
            yield
        finally:
            self.marks.append((f"end {name}", self.host_s))

    def captured(self) -> AbstractContextManager[None]:
        """A range of that name."""
        return self.annotate("captured")

    def close(self) -> None:
        """Write it down."""
        self.calls.append("close device")


class ScriptedRecorder(Owned):
    """See `device.api.ActivityRecorder`: what the script says of plain runs, or of replays of graphs."""

    def __init__(self, device: ScriptedDevice, *, ranges: bool) -> None:
        super().__init__(device)
        self._ranges = ranges
        self._runs = {
            "enqueue": then_last(self.device.script.kernels, ()),
            "launch": then_last(self.device.script.graph_kernels, ()),
        }

    def record(self, work: Callable[[], None]) -> TracedRun:
        """The next scripted run of whichever kind `work` is; with ranges if the context emits them."""
        before = len(self.device.calls)
        work()
        (kind,) = (name for name in self.device.calls[before:] if name in self._runs)
        ranges = self.device.script.ranges if self._ranges and self.device.emits_ranges else ()
        return TracedRun(activities=tuple(next(self._runs[kind])), ranges=tuple(ranges))

    def dropped(self) -> int:
        """What the script says."""
        return self.device.script.dropped


class ScriptedContext(Owned):
    """See `device.api.Context`."""

    def __init__(self, device: ScriptedDevice, bindings: tuple[Binding, ...]) -> None:
        super().__init__(device)
        self._bindings = bindings
        self._report: Callable[[str, float], None] | None = None
        self._on_request = False

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """All inputs and outputs."""
        return self._bindings

    def bind(self, buffers: Mapping[str, DeviceBuffer]) -> None:
        """Every binding must have its buffer."""
        self.device.call("bind")
        assert set(buffers) == {binding.name for binding in self._bindings}

    def enqueue(self, stream: Stream) -> None:
        """One inference of scripted length, or one more in the graph being captured."""
        self.device.call("enqueue")
        if self.device.recorded is not None:
            self.device.recorded.append(lambda: next(self.device.compute))
            return
        self.device.host_s += next(self.device.enqueue) / 1e3
        run_on(stream, next(self.device.compute))
        if self._report is not None and not self._on_request:
            self._tell()

    def launcher(self, stream: Stream) -> Callable[[], None]:
        """The same."""
        return lambda: self.enqueue(stream)

    def _tell(self) -> None:
        assert self._report is not None
        for name, ms in self.device.script.layers.items():
            self._report(name, ms)

    def sized_outputs(self) -> dict[str, SizedOutput]:
        """None."""
        return {}

    def report_layers(self, report: Callable[[str, float], None], *, on_request: bool = False) -> None:
        """Report the scripted layers from now on."""
        self._report, self._on_request = report, on_request

    def request_layers(self) -> bool:
        """Report them now, if the script lets a replayed graph have any."""
        self.device.call("request_layers")
        if self.device.script.replayed_layers:
            self._tell()
        return self.device.script.replayed_layers

    def emit_ranges(self) -> None:
        """For the recorder, from now on."""
        self.device.emits_ranges = True

    def inspect(self) -> str | None:
        """What the script says."""
        self.device.call("inspect")
        return self.device.script.inspector


class ScriptedSession(Owned):
    """See `device.api.Session`: one input `x` and one output `y` of float32."""

    device_memory_bytes = 1 << 20
    inputs = (TensorSpec(name="x", dtype="float32", shape=("N", 4)),)
    outputs = (TensorSpec(name="y", dtype="float32", shape=("N", 2)),)
    profiles: tuple[Mapping[str, ShapeRange], ...] = ({"x": ShapeRange(min=(1, 4), opt=(8, 4), max=(64, 4))},)

    def layer_pass(self, shapes: Mapping[str, Shape], data: Inputs, runs: int) -> None:
        """A context tells."""

    def context(self, shapes: Mapping[str, Shape]) -> ScriptedContext:
        """A new context."""
        self.device.call("context")
        batch = shapes["x"][0]
        float32 = np.dtype(np.float32)
        return ScriptedContext(
            self.device,
            (
                Binding("x", float32, (batch, 4), is_input=True),
                Binding("y", float32, (batch, 2), is_input=False),
            ),
        )


class ScriptedTarget:
    """See `device.api.Target`."""

    backend = Backend(name="scripted", version="1")

    def __init__(self, device: ScriptedDevice) -> None:
        self._device = device

    @property
    def device(self) -> ScriptedDevice:
        """The scripted device."""
        return self._device

    def load(self, engine: bytes, *, track: AllocationTracker | None = None) -> ScriptedSession:
        """The scripted session, whatever the engine; a tracker sees one allocation."""
        self._device.call("load")
        if track is not None:
            track.add("allocate", ScriptedSession.device_memory_bytes, 1)
        return ScriptedSession(self._device)

    def close(self) -> None:
        """Close the device."""
        self._device.close()
