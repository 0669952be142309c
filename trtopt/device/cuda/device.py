"""What CUDA devices share, whichever binding they go through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import (
    ActivityRecorder,
    ClockSensor,
    Device,
    DeviceBuffer,
    DeviceMemory,
    Event,
    HostBuffer,
    Stream,
)
from trtopt.device.cuda.cupti import CuptiRecorder
from trtopt.device.memory_check import LESS_MEMORY
from trtopt.device.nvml import holders_of, open_sensor
from trtopt.errors import DeviceError, DeviceMemoryError
from trtopt.records import DeviceInfo


def failure(doing: str, name: str, *, is_out_of_memory: bool = False) -> DeviceError:
    """The error of a call that was `doing` something; `name` is CUDA's own name for what went wrong."""
    if is_out_of_memory:
        return DeviceMemoryError(f"out of memory: {doing}", LESS_MEMORY)
    return DeviceError(f"CUDA failed: {doing}: {name}", "see whether nvidia-smi shows a healthy GPU")


class CudaDevice(Device):
    """See `device.api.Device`; what makes streams and events is the binding's, given the device."""

    _call: Callable[..., Any]
    """Calls a function of a binding's with arguments; what fails is a DeviceError that says what was done."""
    _streams: Callable[..., Stream]
    _events: Callable[..., Event]
    _memory_info: str
    _profiler: tuple[str, str]
    """The names of the binding's functions for free and total memory, and to start and stop the profiler."""

    def __init__(self, library: Any, info: DeviceInfo) -> None:
        self.library = library
        self.call = partial(self._call, library)  # no frame more: a query's own calls go this way
        self.info = info

    is_synchronous = False

    def stream(self) -> Stream:
        return self._streams(self)

    def event(self, *, blocking: bool = False, timed: bool = True) -> Event:
        return self._events(self, blocking, timed)

    def device_buffer(self, nbytes: int) -> DeviceBuffer:
        address, release = self._allocate(f"allocating {nbytes / 2**20:.1f} MiB on the device", nbytes)
        return DeviceBuffer(address, nbytes, release)

    def pinned_buffer(self, nbytes: int) -> HostBuffer:
        return HostBuffer(*self._lock_pages(f"page-locking {nbytes / 2**20:.1f} MiB of host memory", nbytes))

    def _allocate(self, doing: str, nbytes: int) -> tuple[int, Callable[[], object]]:
        """The address of device memory, and what gives it back."""
        raise NotImplementedError

    def _lock_pages(self, doing: str, nbytes: int) -> tuple[NDArray[np.uint8], Callable[[], object]]:
        """Page-locked host memory, and what gives it back."""
        raise NotImplementedError

    def _memory(self) -> tuple[int, int]:
        """How many bytes of its memory are free, and how many there are."""
        free, total = self.call("reading free memory", getattr(self.library, self._memory_info))
        return int(free), int(total)

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

    @contextmanager
    def captured(self) -> Iterator[None]:
        if not self.profilers.cuda_profiler:
            yield
            return
        start, stop = (getattr(self.library, name) for name in self._profiler)
        self.call("starting the profiler", start)
        try:
            yield
        finally:
            self.call("stopping the profiler", stop)
