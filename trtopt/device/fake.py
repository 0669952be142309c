"""A scripted device: virtual time, durations from a script, failures on demand.

It ships with trtopt so that the measuring loop, the stopping rules and the order of teardown can be tested
without hardware, and so can code built on `trtopt.measure`.

Streams are timelines: work starts when both the host has enqueued it and the stream's earlier work is done.
The host's clock, one for every host thread, advances only by scripted enqueue times and by waiting. Every
call is written to `calls`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import (
    AllocationTracker,
    Binding,
    ClockSensor,
    DeviceBuffer,
    Event,
    HostBuffer,
    Inputs,
    Stream,
)
from trtopt.device.clocks import UnknownClocks
from trtopt.device.fake_clocks import ScriptedSensor
from trtopt.device.script import Script, then_last
from trtopt.device.virtualtime import HostClocks, Shared
from trtopt.errors import DeviceError, DeviceMemoryError, GraphCaptureError
from trtopt.records import Backend, DeviceInfo, Shape, TensorSpec


class ScriptedDevice:
    """See `device.api.Device`. `open` counts what has been handed out and not closed."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        self._clocks = HostClocks()
        self._guard = threading.Lock()
        self.calls: list[str] = []
        self.open = 0
        self.used = 0
        self.compute = Shared(then_last(self.script.compute_ms, 0.0))
        self.enqueue = Shared(then_last(self.script.enqueue_ms, 0.0))
        self.captured: int | None = None  # inferences in the graph that is being captured

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
        if _is_pageable(source):
            self.host_s += self.script.staging_ms / 1e3
        _run(stream, self.script.h2d_ms)

    def copy_to_host(self, target: HostBuffer, source: DeviceBuffer, stream: Stream) -> None:
        """Takes the scripted time."""
        self.call("copy_to_host")
        _run(stream, self.script.d2h_ms)
        if _is_pageable(target):
            self.host_s = _stream(stream).ready_s

    def capture(self, stream: Stream, work: Callable[[], None]) -> ScriptedGraph:
        """A graph takes the compute time of what it captured."""
        self.call("capture")
        if not self.script.graphs:
            raise GraphCaptureError("the script's engine cannot be captured", "measure it with --no-graph")
        self.captured = 0
        try:
            work()
            return ScriptedGraph(self, self.captured)
        finally:
            self.captured = None

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

    def clock_sensor(self) -> ClockSensor:
        """One that reads what the script says."""
        readings = tuple(self.script.clocks)
        return ScriptedSensor(self, readings) if readings else UnknownClocks("the script tells no clocks")

    def close(self) -> None:
        """Write it down."""
        self.calls.append("close device")


class _Owned:
    """Something that must be closed once."""

    def __init__(self, device: ScriptedDevice) -> None:
        self.device = device
        self.closed = False
        device.open += 1

    def close(self) -> None:
        """Give it back."""
        if not self.closed:
            self.closed = True
            self.device.open -= 1


class ScriptedStream(_Owned):
    """A timeline; `ready_s` is when its work so far is done."""

    handle = 1

    def __init__(self, device: ScriptedDevice) -> None:
        super().__init__(device)
        self.ready_s = 0.0

    def run(self, ms: float) -> None:
        """Enqueue work of that length."""
        self.ready_s = max(self.ready_s, self.device.host_s) + ms / 1e3

    def wait_for(self, event: Event) -> None:
        """Later work starts no earlier than the event."""
        assert isinstance(event, ScriptedEvent)
        self.ready_s = max(self.ready_s, event.at_s)

    def synchronize(self) -> None:
        """The host's clock moves to the stream's end."""
        self.device.call("synchronize")
        self.device.host_s = max(self.device.host_s, self.ready_s)


def _stream(stream: Stream) -> ScriptedStream:
    assert isinstance(stream, ScriptedStream)
    return stream


def _run(stream: Stream, ms: float) -> None:
    _stream(stream).run(ms)


class ScriptedEvent(_Owned):
    """A point on a timeline."""

    handle = 1
    at_s = 0.0

    def __init__(self, device: ScriptedDevice, *, timed: bool) -> None:
        super().__init__(device)
        self._timed = timed

    def record(self, stream: Stream) -> None:
        """The stream's end as it is now; to note the time takes the device a while if the script says so."""
        assert isinstance(stream, ScriptedStream)
        if self._timed and self.device.script.timing_ms:
            _run(stream, self.device.script.timing_ms)
        self.at_s = max(stream.ready_s, self.device.host_s)

    def wait(self) -> None:
        """The host's clock moves to the event."""
        self.device.call("wait")
        self.device.host_s = max(self.device.host_s, self.at_s)

    def reached(self) -> bool:
        """Whether the host's clock has come so far."""
        return self.at_s <= self.device.host_s

    def elapsed_ms(self, since: Event) -> float:
        """Virtual milliseconds."""
        assert isinstance(since, ScriptedEvent)
        assert self._timed, "an event without a time is asked for its time"
        assert since._timed, "an event without a time is asked for its time"
        return (self.at_s - since.at_s) * 1e3


class ScriptedBuffer(_Owned):
    """Memory that is counted."""

    def __init__(
        self, device: ScriptedDevice, nbytes: int, *, kind: Literal["device", "pinned", "pageable"] = "pinned"
    ) -> None:
        super().__init__(device)
        self.nbytes = nbytes
        self.kind = kind
        self.array: NDArray[np.uint8] = np.zeros(nbytes, np.uint8)
        self.address = int(self.array.ctypes.data)
        self._counted = nbytes if kind == "device" else 0
        device.used += self._counted

    def close(self) -> None:
        """Give it back."""
        if not self.closed:
            self.device.used -= self._counted
        super().close()


def _is_pageable(buffer: HostBuffer) -> bool:
    assert isinstance(buffer, ScriptedBuffer)
    return buffer.kind == "pageable"


class ScriptedGraph(_Owned):
    """As many inferences as were captured."""

    def __init__(self, device: ScriptedDevice, inferences: int) -> None:
        super().__init__(device)
        self._inferences = inferences

    def launch(self, stream: Stream) -> None:
        """Enqueue them."""
        self.device.call("launch")
        self.device.host_s += next(self.device.enqueue) / 1e3
        for _ in range(self._inferences):
            _run(stream, next(self.device.compute))


class ScriptedContext(_Owned):
    """See `device.api.Context`."""

    def __init__(self, device: ScriptedDevice, bindings: tuple[Binding, ...]) -> None:
        super().__init__(device)
        self._bindings = bindings
        self._report: Callable[[str, float], None] | None = None
        self._consumed: Event | None = None

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """All inputs and outputs."""
        return self._bindings

    def bind(self, buffers: Mapping[str, DeviceBuffer], consumed: Event | None = None) -> None:
        """Every binding must have its buffer."""
        self.device.call("bind")
        self._consumed = consumed
        assert set(buffers) == {binding.name for binding in self._bindings}

    def enqueue(self, stream: Stream) -> None:
        """One inference of scripted length, or one more in the graph being captured."""
        self.device.call("enqueue")
        if self.device.captured is not None:
            assert self._consumed is None, "an event is bound while a graph is captured"
            self.device.captured += 1
            return
        self.device.host_s += next(self.device.enqueue) / 1e3
        compute_ms = next(self.device.compute)
        _run(stream, compute_ms)
        if isinstance(self._consumed, ScriptedEvent):
            started_s = _stream(stream).ready_s - compute_ms / 1e3
            self._consumed.at_s = started_s + min(self.device.script.input_read_ms, compute_ms) / 1e3
        if self._report is not None:
            for name, ms in self.device.script.layers.items():
                self._report(name, ms)

    def report_layers(self, report: Callable[[str, float], None]) -> None:
        """Report the scripted layers from now on."""
        self._report = report

    def inspect(self) -> str | None:
        """What the script says."""
        self.device.call("inspect")
        return self.device.script.inspector


class ScriptedSession(_Owned):
    """See `device.api.Session`: one input `x` and one output `y` of float32."""

    device_memory_bytes = 1 << 20
    inputs = (TensorSpec(name="x", dtype="float32", shape=("N", 4)),)
    outputs = (TensorSpec(name="y", dtype="float32", shape=("N", 2)),)

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
