"""What CUDA devices share, whichever binding they go through."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from trtopt.device.api import (
    ActivityRecorder,
    ClockSensor,
    DeviceBuffer,
    DeviceMemory,
    Event,
    HostBuffer,
    Stream,
)
from trtopt.device.cuda.cupti import CuptiRecorder
from trtopt.device.nvml import holders_of, open_sensor
from trtopt.device.nvtx import NvtxMarks
from trtopt.device.ort.host import HostMemory, poll
from trtopt.errors import DeviceError, DeviceMemoryError
from trtopt.records import DeviceInfo


def failure(doing: str, name: str, *, is_out_of_memory: bool) -> DeviceError:
    """The error of a call that was `doing` something; `name` is CUDA's own name for what went wrong."""
    if is_out_of_memory:
        return DeviceMemoryError(f"out of memory: {doing}", "use a smaller batch, or free the GPU")
    return DeviceError(f"CUDA failed: {doing}: {name}", "see whether nvidia-smi shows a healthy GPU")


class CudaDevice:
    """See `device.api.Device`; what makes streams, events and buffers is the binding's."""

    _streams: Any
    _events: Any
    _buffers: Any
    _pinned: Any

    def __init__(self, library: Any, info: DeviceInfo, marks: NvtxMarks) -> None:
        self._library = library
        self.info = info
        self._marks = marks

    is_synchronous = False
    now = staticmethod(time.perf_counter)

    def stream(self) -> Stream:
        """A new non-blocking stream."""
        stream: Stream = self._streams(self._library)
        return stream

    def event(self, *, blocking: bool = False, timed: bool = True) -> Event:
        event: Event = self._events(self._library, blocking, timed)
        return event

    def device_buffer(self, nbytes: int) -> DeviceBuffer:
        buffer: DeviceBuffer = self._buffers(self._library, nbytes)
        return buffer

    def pinned_buffer(self, nbytes: int) -> HostBuffer:
        buffer: HostBuffer = self._pinned(self._library, nbytes)
        return buffer

    def pageable_buffer(self, nbytes: int) -> HostMemory:
        return HostMemory(nbytes)

    def wait_any(self, events: Sequence[Event], until_s: float) -> None:
        poll(events, until_s)

    def _memory(self) -> tuple[int, int]:
        """How many bytes of its memory are free, and how many there are."""
        raise NotImplementedError

    def _is_integrated(self) -> bool:
        """Whether its memory is the host's."""
        raise NotImplementedError

    def used_bytes(self) -> int | None:
        free, total = self._memory()
        return total - free

    def device_memory(self) -> DeviceMemory | None:
        """As CUDA reports it; NVML reports who has the rest."""
        return None if self._is_integrated() else DeviceMemory(*self._memory(), holders_of(self.info))

    def clock_sensor(self) -> ClockSensor:
        return open_sensor(self.info)

    def activity_recorder(self, *, ranges: bool = False) -> ActivityRecorder:
        return CuptiRecorder(ranges=ranges)

    def annotate(self, name: str) -> AbstractContextManager[object]:
        return self._marks.range(name)
