"""Streams, events, buffers and graphs of a scripted device: see `device.fake`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from trtopt.device.api import Event, HostBuffer, Stream

if TYPE_CHECKING:
    from tests.support.scripted_device.device import ScriptedDevice


class Owned:
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


class ScriptedStream(Owned):
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


def scripted_stream(stream: Stream) -> ScriptedStream:
    """It can be no other here."""
    assert isinstance(stream, ScriptedStream)
    return stream


def run_on(stream: Stream, ms: float) -> None:
    """Enqueue work of that length."""
    scripted_stream(stream).run(ms)


class ScriptedEvent(Owned):
    """A point on a timeline."""

    at_s = 0.0

    def __init__(self, device: ScriptedDevice, *, timed: bool) -> None:
        super().__init__(device)
        self._timed = timed

    def record(self, stream: Stream) -> None:
        """The stream's end as it is now; to note the time takes the device a while if the script says so."""
        assert isinstance(stream, ScriptedStream)
        if self._timed and self.device.script.timing_ms:
            run_on(stream, self.device.script.timing_ms)
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


class ScriptedBuffer(HostBuffer):
    """Memory that is counted."""

    def __init__(
        self, device: ScriptedDevice, nbytes: int, *, kind: Literal["device", "pinned", "pageable"] = "pinned"
    ) -> None:
        super().__init__(np.zeros(nbytes, np.uint8), lambda: self._count(-1))
        self._device, self.kind = device, kind
        self._count(1)

    def _count(self, sign: int) -> None:
        self._device.open += sign
        self._device.used += sign * self.nbytes * (self.kind == "device")


def is_pageable(buffer: HostBuffer) -> bool:
    """Whether the device cannot copy from or to it by itself."""
    assert isinstance(buffer, ScriptedBuffer)
    return buffer.kind == "pageable"


class ScriptedGraph(Owned):
    """What was captured on a stream, each part telling its milliseconds."""

    def __init__(self, device: ScriptedDevice, stream: Stream, parts: Sequence[Callable[[], float]]) -> None:
        super().__init__(device)
        self._stream, self._parts = stream, tuple(parts)

    def launch(self) -> None:
        """Enqueue them."""
        self.device.call("launch")
        self.device.host_s += next(self.device.enqueue) / 1e3
        for duration_ms in self._parts:
            run_on(self._stream, duration_ms())
