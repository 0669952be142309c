"""A CUDA device through pycuda, on the primary context; CUDA graphs come from cuda-python if it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import (
    DeviceBuffer,
    Event,
    Graph,
    HostBuffer,
    Stream,
)
from trtopt.device.cuda import cuda_python
from trtopt.device.cuda.device import CudaDevice, failure
from trtopt.device.cuda.probe import gpu
from trtopt.device.nvtx import UNMARKED, NvtxMarks
from trtopt.errors import BackendMissingError, DeviceError, GraphCaptureError
from trtopt.extras import install
from trtopt.records import DeviceInfo

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING, which pycuda does not name

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Method = Callable[Concatenate[Any, _Given], _Result]


def _translated(driver: Any, error: Exception, doing: str) -> DeviceError:
    """A `pycuda.driver.Error` as the error that cuda-python's binding raises."""
    return failure(doing, str(error), is_out_of_memory=isinstance(error, driver.MemoryError))


def _checked(doing: str) -> Callable[[_Method[_Given, _Result]], _Method[_Given, _Result]]:
    """Let a method raise DeviceError for pycuda's; its object has pycuda's module in `_driver`."""

    def decorate(method: _Method[_Given, _Result]) -> _Method[_Given, _Result]:
        @wraps(method)
        def call(self: Any, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
            try:
                return method(self, *args, **kwargs)
            except self._driver.Error as error:
                raise _translated(self._driver, error, doing) from None

        return call

    return decorate


class _Stream:
    """See `device.api.Stream`."""

    @_checked("making a stream")
    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.raw = driver.Stream(_NON_BLOCKING)
        self.handle = int(self.raw.handle)

    @_checked("making a stream wait")
    def wait_for(self, event: Event) -> None:
        assert isinstance(event, _Event)
        self.raw.wait_for_event(event.raw)

    @_checked("waiting for a stream")
    def synchronize(self) -> None:
        self.raw.synchronize()

    def close(self) -> None:
        """pycuda destroys it with its object."""
        self.raw = None


class _Event:
    """See `device.api.Event`."""

    @_checked("making an event")
    def __init__(self, driver: Any, blocking: bool, timed: bool) -> None:
        self._driver = driver
        flags = driver.event_flags.BLOCKING_SYNC if blocking else driver.event_flags.DEFAULT
        if not timed:
            flags |= driver.event_flags.DISABLE_TIMING
        self.raw = driver.Event(flags)

    @_checked("recording an event")
    def record(self, stream: Stream) -> None:
        assert isinstance(stream, _Stream)
        self.raw.record(stream.raw)

    @_checked("waiting for an event")
    def wait(self) -> None:
        self.raw.synchronize()

    @_checked("querying an event")
    def reached(self) -> bool:
        return bool(self.raw.query())

    @_checked("reading an event's time")
    def elapsed_ms(self, since: Event) -> float:
        assert isinstance(since, _Event)
        return float(self.raw.time_since(since.raw))

    def close(self) -> None:
        """pycuda destroys it with its object."""
        self.raw = None


class _Buffer:
    """See `device.api.DeviceBuffer`."""

    def __init__(self, driver: Any, nbytes: int) -> None:
        self._driver = driver
        self.nbytes = nbytes
        try:
            self._memory = driver.mem_alloc(nbytes)
        except driver.Error as error:
            doing = f"allocating {nbytes / 2**20:.1f} MiB on the device"
            raise _translated(driver, error, doing) from None
        self.address = int(self._memory)

    @_checked("giving back device memory")
    def close(self) -> None:
        if self.address:
            self.address = 0
            self._memory.free()


class _Pinned:
    """See `device.api.HostBuffer`."""

    @_checked("allocating page-locked host memory")
    def __init__(self, driver: Any, nbytes: int) -> None:
        self._driver = driver
        self.nbytes = nbytes
        self.array: NDArray[np.uint8] = driver.pagelocked_empty(nbytes, np.uint8)
        self.address = int(self.array.ctypes.data)

    @_checked("giving back page-locked host memory")
    def close(self) -> None:
        """Give it back; views of `array` must not be used afterwards."""
        if self.nbytes:
            self.nbytes = 0
            self.array.base.free()  # type: ignore[union-attr]  # pycuda's allocation object


class PycudaDevice(CudaDevice):
    """See `device.api.Device`."""

    _streams, _events, _buffers, _pinned = _Stream, _Event, _Buffer, _Pinned

    def __init__(self, driver: Any, context: Any, info: DeviceInfo, marks: NvtxMarks) -> None:
        super().__init__(driver, info, marks)
        self._driver = driver
        self._context = context

    @_checked("copying to the device")
    def copy_to_device(self, target: DeviceBuffer, source: HostBuffer, stream: Stream) -> None:
        assert isinstance(stream, _Stream)
        self._driver.memcpy_htod_async(target.address, source.array, stream.raw)

    @_checked("copying to the host")
    def copy_to_host(self, target: HostBuffer, source: DeviceBuffer, stream: Stream) -> None:
        assert isinstance(stream, _Stream)
        self._driver.memcpy_dtoh_async(target.array, source.address, stream.raw)

    @_checked("copying on the device")
    def copy_on_device(self, target: DeviceBuffer, source: DeviceBuffer, stream: Stream) -> None:
        assert isinstance(stream, _Stream)
        self._driver.memcpy_dtod_async(target.address, source.address, source.nbytes, stream.raw)

    def capture(self, stream: Stream, work: Callable[[], None]) -> Graph:
        """Capture what `work` enqueues on `stream`, through cuda-python."""
        try:
            runtime = cuda_python.load_runtime()
        except BackendMissingError as error:
            raise GraphCaptureError(
                f"pycuda has no CUDA graphs, and {error.problem} (pip install cuda-python)"
            ) from None
        return cuda_python.capture_graph(runtime, stream, work)

    @contextmanager
    def adopt_thread(self) -> Iterator[None]:
        """pycuda keeps a stack of contexts for every thread."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @_checked("entering the device")
    def _enter(self) -> None:
        self._context.push()

    @_checked("leaving the device")
    def _leave(self) -> None:
        self._context.pop()

    @_checked("reading free memory")
    def _memory(self) -> tuple[int, int]:
        free, total = self._driver.mem_get_info()
        return int(free), int(total)

    @_checked("reading free memory")
    def _is_integrated(self) -> bool:
        attribute = self._driver.device_attribute.INTEGRATED
        return bool(self._driver.Context.get_device().get_attribute(attribute))

    def captured(self) -> AbstractContextManager[None]:
        return self._marks.captured(self._start_profiler, self._stop_profiler)

    @_checked("starting the profiler")
    def _start_profiler(self) -> None:
        self._driver.start_profiler()

    @_checked("stopping the profiler")
    def _stop_profiler(self) -> None:
        self._driver.stop_profiler()

    @_checked("leaving the device")
    def close(self) -> None:
        """Leave the primary context; other libraries may go on using it."""
        if self._context is not None:
            context, self._context = self._context, None
            try:
                context.pop()
            finally:
                context.detach()


def open_device(ordinal: int = 0, marks: NvtxMarks = UNMARKED) -> PycudaDevice:
    """The CUDA device of that number."""
    try:
        import pycuda.driver as driver
    except ImportError as error:
        raise BackendMissingError(
            f"pycuda is not installed or cannot be loaded ({error})",
            f"{install('pycuda')} (needs a CUDA toolkit), or set TRTOPT_CUDA=cuda-python",
        ) from None
    import pycuda

    info = gpu(ordinal, f"pycuda {pycuda.VERSION_TEXT}")
    try:
        driver.init()
        context = driver.Device(ordinal).retain_primary_context()
        context.push()
    except driver.Error as error:
        raise _translated(driver, error, "choosing the device") from None
    return PycudaDevice(driver, context, info, marks)
