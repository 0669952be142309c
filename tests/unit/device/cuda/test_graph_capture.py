"""A capture is ended whatever ends its work: on a stand-in for cuda-python's runtime."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from trtopt.device.cuda.cuda_python import capture_graph
from trtopt.errors import DeviceError, GraphCaptureError

OK = SimpleNamespace(name="cudaSuccess")
INVALIDATED = SimpleNamespace(name="cudaErrorStreamCaptureInvalidated")


class Runtime:
    """As much of `cuda.bindings.runtime` as capturing calls; it keeps count of captures and graphs."""

    cudaError_t = SimpleNamespace(cudaSuccess=OK, cudaErrorMemoryAllocation=object())
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)

    def __init__(self, end: object = OK) -> None:
        self.capturing: set[int] = set()
        self.graphs: list[str] = []
        self.destroyed = 0
        self._end, self._last = end, OK

    def cudaStreamBeginCapture(self, stream: int, mode: int) -> tuple[object]:
        self.capturing.add(stream)
        return (OK,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[object, Any]:
        self.capturing.remove(stream)
        if self._end is not OK:
            self._last = self._end
            return self._end, None
        self.graphs.append("graph")
        return OK, "graph"

    def cudaGraphInstantiate(self, graph: str, flags: int) -> tuple[object, str]:
        assert graph in self.graphs
        return OK, "executable"

    def cudaGraphDestroy(self, graph: str) -> tuple[object]:
        self.graphs.remove(graph)
        return (OK,)

    def cudaGraphExecDestroy(self, executable: str) -> tuple[object]:
        self.destroyed += 1
        return (OK,)

    def cudaGetLastError(self) -> tuple[object]:
        told, self._last = self._last, OK
        return (told,)

    def cudaGraphLaunch(self, executable: str, stream: int) -> tuple[object]:
        assert (executable, stream) == ("executable", STREAM.handle)
        return (self._end,)


STREAM: Any = SimpleNamespace(handle=7)


def raising(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize("end", [OK, INVALIDATED], ids=lambda status: status.name)
@pytest.mark.parametrize("error", [ValueError("of a plugin"), KeyboardInterrupt(), SystemExit(143)])
def test_whatever_ends_the_work_goes_on_as_it_is_and_the_stream_is_free_again(
    error: BaseException, end: object
) -> None:
    runtime = Runtime(end)
    with pytest.raises(type(error)) as caught:
        capture_graph(runtime, STREAM, raising(error))
    assert caught.value is error
    assert (runtime.capturing, runtime.graphs) == (set(), [])
    assert runtime.cudaGetLastError() == (OK,)


@pytest.mark.parametrize("end", [OK, INVALIDATED], ids=lambda status: status.name)
def test_work_that_the_device_refuses_leaves_neither_a_capture_nor_its_graph(end: object) -> None:
    runtime = Runtime(end)
    with pytest.raises(GraphCaptureError, match="cannot be captured in a CUDA graph: it refuses"):
        capture_graph(runtime, STREAM, raising(DeviceError("it refuses", "")))
    assert (runtime.capturing, runtime.graphs) == (set(), [])


def test_a_capture_that_was_invalidated_is_named_and_leaves_no_error_behind() -> None:
    runtime = Runtime(INVALIDATED)
    with pytest.raises(GraphCaptureError, match="cudaErrorStreamCaptureInvalidated"):
        capture_graph(runtime, STREAM, lambda: None)
    assert runtime.cudaGetLastError() == (OK,)


def test_a_capture_that_succeeds_keeps_the_executable_alone_and_destroys_it_once() -> None:
    runtime = Runtime()
    graph = capture_graph(runtime, STREAM, lambda: None)
    assert (runtime.capturing, runtime.graphs, runtime.destroyed) == (set(), [], 0)
    graph.close()
    graph.close()
    assert runtime.destroyed == 1


def test_a_launch_that_fails_is_an_error_with_cudas_name_for_it() -> None:
    runtime = Runtime()
    run = capture_graph(runtime, STREAM, lambda: None).launch
    run()
    runtime._end = INVALIDATED
    with pytest.raises(DeviceError, match="cudaErrorStreamCaptureInvalidated"):
        run()
