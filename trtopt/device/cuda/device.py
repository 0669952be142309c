"""What CUDA devices share, whichever binding they go through, and many copies by one call of the driver."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from trtopt.device.api import (
    ActivityRecorder,
    ClockSensor,
    DeviceBuffer,
    DeviceMemory,
    Event,
    HostBuffer,
    Piece,
    Stream,
)
from trtopt.device.cuda.cupti import CuptiRecorder
from trtopt.device.cuda.probe import load_driver
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


_IN_STREAM_ORDER = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes: the locations are hints for managed memory, for which none is given."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source", ctypes.c_int * 2),
        ("target", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


def copy_pieces(pieces: Sequence[Piece], stream: int) -> None:
    """Enqueue the copies, in any order; the sources are the device's memory, or page-locked.

    A call of a binding for each of them lets go of the interpreter's lock as often: next to a thread that
    computes in Python 128 rows of 600 KB were copied on the device at 0.8 GB/s so, and at 45 by one call
    (benchmarks/runtime/gathering.json).

    cuMemcpyBatchAsync is there from CUDA 12.8 on, whose form of it newer drivers offer as well; before that
    each takes a call.
    """
    driver = load_driver()
    handle = ctypes.c_void_p(stream)
    if hasattr(driver, "cuMemcpyBatchAsync"):
        _check(driver, _at_once(driver, pieces, handle))
        return
    for target, source, nbytes in pieces:
        addresses = ctypes.c_uint64(target), ctypes.c_uint64(source)
        _check(driver, driver.cuMemcpyAsync(*addresses, ctypes.c_size_t(nbytes), handle))


def _at_once(driver: Any, pieces: Sequence[Piece], stream: ctypes.c_void_p) -> int:
    columns = np.array(pieces, np.uint64).T.copy()
    targets, sources, sizes = (ctypes.c_void_p(column.ctypes.data) for column in columns)
    first, failed = ctypes.c_size_t(0), ctypes.c_size_t(0)
    status = driver.cuMemcpyBatchAsync(
        targets,
        sources,
        sizes,
        ctypes.c_size_t(len(pieces)),
        ctypes.byref(_Attributes(_IN_STREAM_ORDER)),
        ctypes.byref(first),
        ctypes.c_size_t(1),
        ctypes.byref(failed),
        stream,
    )
    return int(status)


def _check(driver: Any, status: int) -> None:
    if status == 0:
        return
    text = ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(text))
    name = text.value.decode() if text.value else f"error {status}"
    raise failure("copying rows", name, is_out_of_memory=status == _OUT_OF_MEMORY)


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

    def gather(self, pieces: Sequence[Piece], stream: Stream) -> None:
        """Enqueue copies, by the driver itself."""
        copy_pieces(pieces, stream.handle)

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
