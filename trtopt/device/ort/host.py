"""The host's processor as a device: streams run at once, events read the clock, copies are memory copies."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from trtopt.device.api import (
    ActivityRecorder,
    ClockSensor,
    Device,
    DeviceBuffer,
    Event,
    Graph,
    HostBuffer,
    Stream,
)
from trtopt.device.clocks import UnknownClocks
from trtopt.errors import GraphCaptureError, UsageError
from trtopt.records import DeviceInfo


def cpu_info() -> DeviceInfo:
    """The host's processor."""
    return DeviceInfo(kind="cpu", name=cpu_name())


def cpu_name() -> str:
    """The processor's model name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def present_cores() -> tuple[int, ...]:
    """The cores that the calling thread and those it starts may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


class HostStream:
    """A stream whose work is done when it is enqueued."""

    handle = 0

    def wait_for(self, event: Event) -> None:
        """Nothing is ever pending."""

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def close(self) -> None:
        """Nothing is held."""


class HostEvent:
    """A reading of the host clock."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def record(self, stream: Stream) -> None:
        self.at_s = time.perf_counter()

    def wait(self) -> None:
        """Nothing is ever pending."""

    def reached(self) -> bool:
        return True

    def elapsed_ms(self, since: Event) -> float:
        assert isinstance(since, HostEvent)
        return (self.at_s - since.at_s) * 1e3

    def close(self) -> None:
        """Nothing is held."""


class HostDevice(Device):
    """The host as a device; see `device.api.Device`.

    Its memory is shared with caches that give way, so that what is free is unknown.
    """

    def __init__(self) -> None:
        self.info = cpu_info()

    is_synchronous = True

    def stream(self) -> HostStream:
        return HostStream()

    def event(self, *, blocking: bool = False, timed: bool = True) -> HostEvent:
        return HostEvent()

    device_buffer = pinned_buffer = Device.pageable_buffer
    """All memory is the host's, and locking its pages would change nothing here."""

    def copy_to_device(self, target: DeviceBuffer, source: HostBuffer, stream: Stream) -> None:
        assert isinstance(target, HostBuffer)
        np.copyto(target.array, source.array)

    def copy_to_host(self, target: HostBuffer, source: DeviceBuffer, stream: Stream) -> None:
        if isinstance(source, HostBuffer):
            np.copyto(target.array, source.array)
        else:
            ctypes.memmove(target.address, source.address, target.nbytes)

    def copy_on_device(self, target: DeviceBuffer, source: DeviceBuffer, stream: Stream) -> None:
        ctypes.memmove(target.address, source.address, source.nbytes)

    def capture(self, stream: Stream, work: Callable[[], None]) -> Graph:
        raise GraphCaptureError("ONNX Runtime on the CPU has no CUDA graphs")

    def clock_sensor(self) -> ClockSensor:
        return UnknownClocks("a processor's clocks are not read")

    def activity_recorder(self, *, ranges: bool = False) -> ActivityRecorder:
        raise needs_gpu("--kernels")

    def close(self) -> None:
        """Nothing is held."""


_NEEDS_GPU = {
    "--memory": (
        "ONNX Runtime on the CPU has no device allocator to follow",
        "omit --memory, or measure a TensorRT engine on a GPU",
    ),
    "--cuda-profiler": ("a processor has no CUDA to profile", "omit it, or measure on a GPU"),
    "--kernels": ("a processor runs no kernels", "omit it, or profile on a GPU"),
    "--lock-clocks": ("a processor's clocks cannot be locked", "omit it"),
}


def needs_gpu(option: str) -> UsageError:
    """The error for an option that a processor cannot do."""
    problem, remedy = _NEEDS_GPU[option]
    return UsageError(f"{option}: {problem}", remedy)
