"""A CUDA device through pycuda, on the primary context; CUDA graphs come from cuda-python if it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import DeviceBuffer, Event, Graph, HostBuffer, Stream
from trtopt.device.cuda import cuda_python
from trtopt.device.cuda.device import CudaDevice, failure
from trtopt.device.cuda.probe import first_gpu
from trtopt.errors import BackendMissingError, GraphCaptureError
from trtopt.extras import install
from trtopt.records import DeviceInfo

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING, which pycuda does not name


def _call(driver: Any, doing: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of pycuda's, with the errors of cuda-python's binding."""
    try:
        return function(*arguments)
    except driver.Error as error:
        is_out_of_memory = isinstance(error, driver.MemoryError)
        raise failure(doing, str(error), is_out_of_memory=is_out_of_memory) from None


class _Stream:
    """See `device.api.Stream`; pycuda destroys it with its object, as it does an event."""

    def __init__(self, cuda: CudaDevice) -> None:
        self._cuda = cuda
        self.raw = cuda.call("making a stream", cuda.library.Stream, _NON_BLOCKING)
        self.handle = int(self.raw.handle)

    def wait_for(self, event: Event) -> None:
        assert isinstance(event, _Event)
        self._cuda.call("making a stream wait", self.raw.wait_for_event, event.raw)

    def synchronize(self) -> None:
        self._cuda.call("waiting for a stream", self.raw.synchronize)

    def close(self) -> None:
        self.raw = None


class _Event:
    """See `device.api.Event`."""

    def __init__(self, cuda: CudaDevice, blocking: bool, timed: bool) -> None:
        self._cuda = cuda
        named = cuda.library.event_flags
        flags = named.BLOCKING_SYNC if blocking else named.DEFAULT
        if not timed:
            flags |= named.DISABLE_TIMING
        self.raw = cuda.call("making an event", cuda.library.Event, flags)

    def record(self, stream: Stream) -> None:
        assert isinstance(stream, _Stream)
        self._cuda.call("recording an event", self.raw.record, stream.raw)

    def wait(self) -> None:
        self._cuda.call("waiting for an event", self.raw.synchronize)

    def reached(self) -> bool:
        return bool(self._cuda.call("querying an event", self.raw.query))

    def elapsed_ms(self, since: Event) -> float:
        assert isinstance(since, _Event)
        return float(self._cuda.call("reading an event's time", self.raw.time_since, since.raw))

    def close(self) -> None:
        self.raw = None


class PycudaDevice(CudaDevice):
    """See `device.api.Device`."""

    _call = staticmethod(_call)
    _streams, _events = _Stream, _Event
    _memory_info, _profiler = "mem_get_info", ("start_profiler", "stop_profiler")

    def __init__(self, driver: Any, context: Any, info: DeviceInfo) -> None:
        super().__init__(driver, info)
        self._context = context

    def _allocate(self, doing: str, nbytes: int) -> tuple[int, Callable[[], object]]:
        memory = self.call(doing, self.library.mem_alloc, nbytes)
        return int(memory), partial(self.call, "giving back device memory", memory.free)

    def _lock_pages(self, doing: str, nbytes: int) -> tuple[NDArray[np.uint8], Callable[[], object]]:
        array = self.call(doing, self.library.pagelocked_empty, nbytes, np.uint8)
        return array, partial(self.call, "giving back page-locked host memory", array.base.free)

    def copy_to_device(self, target: DeviceBuffer, source: HostBuffer, stream: Stream) -> None:
        assert isinstance(stream, _Stream)
        copy = self.library.memcpy_htod_async
        self.call("copying to the device", copy, target.address, source.array, stream.raw)

    def copy_to_host(self, target: HostBuffer, source: DeviceBuffer, stream: Stream) -> None:
        assert isinstance(stream, _Stream)
        copy = self.library.memcpy_dtoh_async
        self.call("copying to the host", copy, target.array, source.address, stream.raw)

    def copy_on_device(self, target: DeviceBuffer, source: DeviceBuffer, stream: Stream) -> None:
        assert isinstance(stream, _Stream)
        copy = self.library.memcpy_dtod_async
        self.call("copying on the device", copy, target.address, source.address, source.nbytes, stream.raw)

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
        self.call("entering the device", self._context.push)
        try:
            yield
        finally:
            self.call("leaving the device", self._context.pop)

    def _is_integrated(self) -> bool:
        doing, attribute = "querying whether its memory is the host's", self.library.device_attribute
        device = self.call(doing, self.library.Context.get_device)
        return bool(self.call(doing, device.get_attribute, attribute.INTEGRATED))

    def close(self) -> None:
        """Leave the primary context; other libraries may go on using it."""
        if self._context is not None:
            context, self._context = self._context, None
            try:
                self.call("leaving the device", context.pop)
            finally:
                self.call("leaving the device", context.detach)


def open_device() -> PycudaDevice:
    """The first CUDA device."""
    try:
        import pycuda.driver as driver
    except ImportError as error:
        raise BackendMissingError(
            f"pycuda is not installed or cannot be loaded ({error})",
            f"{install('pycuda')} (needs a CUDA toolkit), or set TRTOPT_CUDA=cuda-python",
        ) from None
    import pycuda

    info = first_gpu(f"pycuda {pycuda.VERSION_TEXT}")

    def enter() -> Any:
        driver.init()
        context = driver.Device(0).retain_primary_context()
        context.push()
        return context

    context = _call(driver, "choosing the device", enter)
    return PycudaDevice(driver, context, info)
