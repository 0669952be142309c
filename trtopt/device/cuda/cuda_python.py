"""A CUDA device through NVIDIA's cuda-python, on the primary context."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import (
    DeviceBuffer,
    Event,
    Graph,
    HostBuffer,
    Stream,
)
from trtopt.device.cuda.device import CudaDevice, failure
from trtopt.device.cuda.probe import gpu
from trtopt.device.nvtx import UNMARKED, NvtxMarks
from trtopt.errors import BackendMissingError, DeviceError, GraphCaptureError
from trtopt.records import DeviceInfo


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


def capture_graph(runtime: Any, stream: Stream, work: Callable[[], None]) -> Graph:
    """Capture work on any stream of the primary context, whichever binding made it."""
    mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    checked(runtime, runtime.cudaStreamBeginCapture(stream.handle, mode), "beginning a capture")
    try:
        work()
    except BaseException as error:
        _abandon_capture(runtime, stream)
        if isinstance(error, DeviceError):
            raise _not_captured(error.problem) from None
        raise
    status, graph = runtime.cudaStreamEndCapture(stream.handle)
    if status != runtime.cudaError_t.cudaSuccess:
        runtime.cudaGetLastError()  # a failed capture leaves an error that is not the next call's
        raise _not_captured(status.name)
    try:
        executable = checked(runtime, runtime.cudaGraphInstantiate(graph, 0), "instantiating a graph")
    finally:
        runtime.cudaGraphDestroy(graph)
    return _CapturedGraph(runtime, executable)


def _abandon_capture(runtime: Any, stream: Stream) -> None:
    """End a capture that broke off: a stream that is still capturing refuses whatever comes after."""
    status, graph = runtime.cudaStreamEndCapture(stream.handle)
    if status == runtime.cudaError_t.cudaSuccess:
        runtime.cudaGraphDestroy(graph)
    runtime.cudaGetLastError()  # a failed capture leaves an error that is not the next call's


def _not_captured(reason: str) -> GraphCaptureError:
    return GraphCaptureError(f"cannot be captured in a CUDA graph: {reason}")


class _CapturedGraph:
    """See `device.api.Graph`."""

    def __init__(self, runtime: Any, executable: Any) -> None:
        self._runtime = runtime
        self._executable = executable

    def launch(self, stream: Stream) -> None:
        self.launcher(stream)()

    def launcher(self, stream: Stream) -> Callable[[], None]:
        """`cudaGraphLaunch`."""
        call, executable, handle = self._runtime.cudaGraphLaunch, self._executable, stream.handle
        success = self._runtime.cudaError_t.cudaSuccess

        def launch() -> None:
            (status,) = call(executable, handle)
            if status != success:
                raise DeviceError(
                    f"CUDA failed: launching a graph: {status.name}", "see whether the GPU is healthy"
                )

        return launch

    def close(self) -> None:
        if self._executable is not None:
            self._runtime.cudaGraphExecDestroy(self._executable)
            self._executable = None


class _Stream:
    """See `device.api.Stream`."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        made = runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking)
        self._stream = checked(runtime, made, "making a stream")
        self.handle = int(self._stream)

    def wait_for(self, event: Event) -> None:
        assert isinstance(event, _Event)
        checked(self._runtime, self._runtime.cudaStreamWaitEvent(self._stream, event.raw, 0), "waiting")

    def synchronize(self) -> None:
        checked(self._runtime, self._runtime.cudaStreamSynchronize(self._stream), "waiting for a stream")

    def close(self) -> None:
        if self._stream is not None:
            self._runtime.cudaStreamDestroy(self._stream)
            self._stream = None


class _Event:
    """See `device.api.Event`."""

    def __init__(self, runtime: Any, blocking: bool, timed: bool) -> None:
        self._runtime = runtime
        flags = runtime.cudaEventBlockingSync if blocking else runtime.cudaEventDefault
        if not timed:
            flags |= runtime.cudaEventDisableTiming
        self.raw = checked(runtime, runtime.cudaEventCreateWithFlags(flags), "making an event")

    def record(self, stream: Stream) -> None:
        checked(self._runtime, self._runtime.cudaEventRecord(self.raw, stream.handle), "recording an event")

    def wait(self) -> None:
        checked(self._runtime, self._runtime.cudaEventSynchronize(self.raw), "waiting for the device")

    def reached(self) -> bool:
        """Query; being not ready is no failure."""
        (status,) = self._runtime.cudaEventQuery(self.raw)
        if status == self._runtime.cudaError_t.cudaErrorNotReady:
            return False
        checked(self._runtime, (status,), "querying an event")
        return True

    def elapsed_ms(self, since: Event) -> float:
        assert isinstance(since, _Event)
        result = self._runtime.cudaEventElapsedTime(since.raw, self.raw)
        return float(checked(self._runtime, result, "reading an event's time"))

    def close(self) -> None:
        if self.raw is not None:
            self._runtime.cudaEventDestroy(self.raw)
            self.raw = None


class _Buffer:
    """See `device.api.DeviceBuffer`."""

    def __init__(self, runtime: Any, nbytes: int) -> None:
        self._runtime = runtime
        self.nbytes = nbytes
        doing = f"allocating {nbytes / 2**20:.1f} MiB on the device"
        self.address = int(checked(runtime, runtime.cudaMalloc(nbytes), doing))

    def close(self) -> None:
        if self.address:
            self._runtime.cudaFree(self.address)
            self.address = 0


class _Pinned:
    """See `device.api.HostBuffer`."""

    def __init__(self, runtime: Any, nbytes: int) -> None:
        self._runtime = runtime
        self.nbytes = nbytes
        doing = f"page-locking {nbytes / 2**20:.1f} MiB of host memory"
        self.address = int(checked(runtime, runtime.cudaMallocHost(nbytes), doing))
        memory = (ctypes.c_uint8 * nbytes).from_address(self.address)
        self.array: NDArray[np.uint8] = np.ctypeslib.as_array(memory)

    def close(self) -> None:
        """Give it back; views of `array` must not be used afterwards."""
        if self.address:
            self._runtime.cudaFreeHost(self.address)
            self.address = 0


class CudaPythonDevice(CudaDevice):
    """See `device.api.Device`."""

    _streams, _events, _buffers, _pinned = _Stream, _Event, _Buffer, _Pinned

    def __init__(self, runtime: Any, info: DeviceInfo, ordinal: int, marks: NvtxMarks) -> None:
        super().__init__(runtime, info, marks)
        self._ordinal = ordinal

    def copy_to_device(self, target: DeviceBuffer, source: HostBuffer, stream: Stream) -> None:
        kind = self._library.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._copy(target.address, source.address, source.nbytes, kind, stream)

    def copy_to_host(self, target: HostBuffer, source: DeviceBuffer, stream: Stream) -> None:
        kind = self._library.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._copy(target.address, source.address, target.nbytes, kind, stream)

    def copy_on_device(self, target: DeviceBuffer, source: DeviceBuffer, stream: Stream) -> None:
        kind = self._library.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._copy(target.address, source.address, source.nbytes, kind, stream)

    def _copy(self, target: int, source: int, nbytes: int, kind: Any, stream: Stream) -> None:
        result = self._library.cudaMemcpyAsync(target, source, nbytes, kind, stream.handle)
        checked(self._library, result, "copying")

    def capture(self, stream: Stream, work: Callable[[], None]) -> Graph:
        return capture_graph(self._library, stream, work)

    @contextmanager
    def adopt_thread(self) -> Iterator[None]:
        """The runtime's present device is a thread's own."""
        checked(self._library, self._library.cudaSetDevice(self._ordinal), "choosing the device")
        yield

    def _memory(self) -> tuple[int, int]:
        free, total = checked(self._library, self._library.cudaMemGetInfo(), "reading free memory")
        return int(free), int(total)

    def _is_integrated(self) -> bool:
        attribute = self._library.cudaDeviceAttr.cudaDevAttrIntegrated
        requested = self._library.cudaDeviceGetAttribute(attribute, self._ordinal)
        return bool(checked(self._library, requested, "querying whether its memory is the host's"))

    def captured(self) -> AbstractContextManager[None]:
        runtime = self._library
        return self._marks.captured(
            lambda: checked(runtime, runtime.cudaProfilerStart(), "starting the profiler"),
            lambda: checked(runtime, runtime.cudaProfilerStop(), "stopping the profiler"),
        )

    def close(self) -> None:
        """The primary context is shared with other libraries and stays."""


def open_device(ordinal: int = 0, marks: NvtxMarks = UNMARKED) -> CudaPythonDevice:
    """The CUDA device of that number."""
    runtime = load_runtime()
    import cuda.bindings

    info = gpu(ordinal, f"cuda-python {cuda.bindings.__version__}")
    checked(runtime, runtime.cudaSetDevice(ordinal), "choosing the device")
    return CudaPythonDevice(runtime, info, ordinal, marks)
