"""A CUDA device through NVIDIA's cuda-python, on the primary context."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import DeviceBuffer, Event, Graph, HostBuffer, Stream
from trtopt.device.cuda.device import CudaDevice, failure
from trtopt.device.cuda.probe import first_gpu
from trtopt.errors import BackendMissingError, DeviceError, GraphCaptureError

_FIRST = 0


def load_runtime() -> Any:
    """cuda-python's runtime module."""
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise BackendMissingError(
            f"cuda-python is not installed ({error})", "pip install cuda-python"
        ) from None
    return runtime


def checked(runtime: Any, result: tuple[Any, ...], doing: str) -> Any:
    """The values of a cuda-python call, which returns (status, values…)."""
    status, *values = result
    if status != runtime.cudaError_t.cudaSuccess:
        is_out_of_memory = status == runtime.cudaError_t.cudaErrorMemoryAllocation
        raise failure(doing, status.name, is_out_of_memory=is_out_of_memory)
    return values[0] if len(values) == 1 else tuple(values)


def _call(runtime: Any, doing: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """See `CudaDevice`; what a query does in its timed region calls its function itself."""
    return checked(runtime, function(*arguments), doing)


def capture_graph(runtime: Any, stream: Stream, work: Callable[[], None]) -> Graph:
    """Capture work on any stream of the primary context, whichever binding made it."""
    mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    checked(runtime, runtime.cudaStreamBeginCapture(stream.handle, mode), "beginning a capture")
    with ExitStack() as resources:
        try:
            work()
        except DeviceError as error:
            raise _not_captured(error.problem) from None
        finally:  # whatever ends the work: a stream that is still capturing refuses what comes after
            status, graph = runtime.cudaStreamEndCapture(stream.handle)
            if status == runtime.cudaError_t.cudaSuccess:
                resources.callback(runtime.cudaGraphDestroy, graph)
            runtime.cudaGetLastError()  # a failed capture leaves an error that is not the next call's
        if status != runtime.cudaError_t.cudaSuccess:
            raise _not_captured(status.name)
        executable = checked(runtime, runtime.cudaGraphInstantiate(graph, 0), "instantiating a graph")
    call, success, handle = runtime.cudaGraphLaunch, runtime.cudaError_t.cudaSuccess, stream.handle

    def launch() -> None:
        (status,) = call(executable, handle)
        if status != success:
            raise failure("launching a graph", status.name)

    return Graph(launch, partial(runtime.cudaGraphExecDestroy, executable))


def _not_captured(reason: str) -> GraphCaptureError:
    return GraphCaptureError(f"cannot be captured in a CUDA graph: {reason}")


class _Stream:
    """See `device.api.Stream`."""

    def __init__(self, cuda: CudaDevice) -> None:
        self._cuda, runtime = cuda, cuda.library
        make = runtime.cudaStreamCreateWithFlags
        self._stream = cuda.call("making a stream", make, runtime.cudaStreamNonBlocking)
        self.handle = int(self._stream)

    def wait_for(self, event: Event) -> None:
        assert isinstance(event, _Event)
        self._cuda.call("waiting", self._cuda.library.cudaStreamWaitEvent, self._stream, event.raw, 0)

    def synchronize(self) -> None:
        self._cuda.call("waiting for a stream", self._cuda.library.cudaStreamSynchronize, self._stream)

    def close(self) -> None:
        if self._stream is not None:
            self._cuda.library.cudaStreamDestroy(self._stream)
            self._stream = None


class _Event:
    """See `device.api.Event`."""

    def __init__(self, cuda: CudaDevice, blocking: bool, timed: bool) -> None:
        self._cuda, runtime = cuda, cuda.library
        flags = runtime.cudaEventBlockingSync if blocking else runtime.cudaEventDefault
        if not timed:
            flags |= runtime.cudaEventDisableTiming
        self.raw = cuda.call("making an event", runtime.cudaEventCreateWithFlags, flags)

    def record(self, stream: Stream) -> None:
        self._cuda.call("recording an event", self._cuda.library.cudaEventRecord, self.raw, stream.handle)

    def wait(self) -> None:
        self._cuda.call("waiting for the device", self._cuda.library.cudaEventSynchronize, self.raw)

    def reached(self) -> bool:
        """Query; being not ready is no failure."""
        runtime = self._cuda.library
        (status,) = runtime.cudaEventQuery(self.raw)
        if status == runtime.cudaError_t.cudaErrorNotReady:
            return False
        checked(runtime, (status,), "querying an event")
        return True

    def elapsed_ms(self, since: Event) -> float:
        assert isinstance(since, _Event)
        elapsed = self._cuda.library.cudaEventElapsedTime
        return float(self._cuda.call("reading an event's time", elapsed, since.raw, self.raw))

    def close(self) -> None:
        if self.raw is not None:
            self._cuda.library.cudaEventDestroy(self.raw)
            self.raw = None


class CudaPythonDevice(CudaDevice):
    """See `device.api.Device`."""

    _call = staticmethod(_call)
    _streams, _events = _Stream, _Event
    _memory_info, _profiler = "cudaMemGetInfo", ("cudaProfilerStart", "cudaProfilerStop")

    def _allocate(self, doing: str, nbytes: int) -> tuple[int, Callable[[], object]]:
        address = int(self.call(doing, self.library.cudaMalloc, nbytes))
        return address, partial(self.library.cudaFree, address)

    def _lock_pages(self, doing: str, nbytes: int) -> tuple[NDArray[np.uint8], Callable[[], object]]:
        address = int(self.call(doing, self.library.cudaMallocHost, nbytes))
        memory = (ctypes.c_uint8 * nbytes).from_address(address)
        return np.ctypeslib.as_array(memory), partial(self.library.cudaFreeHost, address)

    def copy_to_device(self, target: DeviceBuffer, source: HostBuffer, stream: Stream) -> None:
        self._copy(target.address, source.address, source.nbytes, "cudaMemcpyHostToDevice", stream)

    def copy_to_host(self, target: HostBuffer, source: DeviceBuffer, stream: Stream) -> None:
        self._copy(target.address, source.address, target.nbytes, "cudaMemcpyDeviceToHost", stream)

    def copy_on_device(self, target: DeviceBuffer, source: DeviceBuffer, stream: Stream) -> None:
        self._copy(target.address, source.address, source.nbytes, "cudaMemcpyDeviceToDevice", stream)

    def _copy(self, target: int, source: int, nbytes: int, name: str, stream: Stream) -> None:
        kind = getattr(self.library.cudaMemcpyKind, name)
        self.call("copying", self.library.cudaMemcpyAsync, target, source, nbytes, kind, stream.handle)

    def capture(self, stream: Stream, work: Callable[[], None]) -> Graph:
        return capture_graph(self.library, stream, work)

    @contextmanager
    def adopt_thread(self) -> Iterator[None]:
        """The runtime's present device is a thread's own."""
        self.call("choosing the device", self.library.cudaSetDevice, _FIRST)
        yield

    def _is_integrated(self) -> bool:
        doing, attribute = "querying whether its memory is the host's", self.library.cudaDeviceAttr
        get = self.library.cudaDeviceGetAttribute
        return bool(self.call(doing, get, attribute.cudaDevAttrIntegrated, _FIRST))

    def close(self) -> None:
        """The primary context is shared with other libraries and stays."""


def open_device() -> CudaPythonDevice:
    """The first CUDA device."""
    runtime = load_runtime()
    import cuda.bindings

    info = first_gpu(f"cuda-python {cuda.bindings.__version__}")
    checked(runtime, runtime.cudaSetDevice(_FIRST), "choosing the device")
    return CudaPythonDevice(runtime, info)
