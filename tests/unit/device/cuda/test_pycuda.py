"""pycuda's errors become trtopt's: on a stand-in for its module, with the exceptions that it documents."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trtopt.device.cuda.pycuda import PycudaDevice
from trtopt.device.nvtx import UNMARKED, NvtxMarks
from trtopt.device.ort.host import HostDevice
from trtopt.errors import DeviceError, DeviceMemoryError
from trtopt.records import DeviceInfo


class Error(Exception):
    """`pycuda.driver.Error`."""


class OutOfMemory(Error):
    """`pycuda.driver.MemoryError`."""


class LaunchError(Error):
    """`pycuda.driver.LaunchError`."""


class Allocation:
    """`pycuda.driver.DeviceAllocation`, and the object that page-locked arrays rest on."""

    def __init__(self, driver: Driver, call: str) -> None:
        self._driver, self._call = driver, call
        self._memory = np.zeros(8, np.uint8)
        self.__array_interface__ = self._memory.__array_interface__

    def __int__(self) -> int:
        return 4096

    def free(self) -> None:
        self._driver.call(self._call)


class Driver:
    """As much of `pycuda.driver` as the binding calls; whatever is named in `broken` raises."""

    Error, MemoryError, LaunchError = Error, OutOfMemory, LaunchError
    event_flags = SimpleNamespace(BLOCKING_SYNC=1, DEFAULT=0)

    def __init__(self) -> None:
        self.broken: dict[str, Error] = {}

    def call(self, name: str, result: Any = None) -> Any:
        if name in self.broken:
            raise self.broken[name]
        return result

    def __getattr__(self, name: str) -> Any:
        results: dict[str, Any] = {
            "Stream": SimpleNamespace(handle=7, **self._methods("wait_for_event", "synchronize")),
            "Event": SimpleNamespace(**self._methods("record", "synchronize", "query", "time_since")),
            "mem_alloc": Allocation(self, "free"),
            "pagelocked_empty": np.asarray(Allocation(self, "free_host")),
        }
        return lambda *args: self.call(name, results.get(name))

    def _methods(self, *names: str) -> dict[str, Any]:
        return {name: lambda *args, name=name: self.call(name) for name in names}

    def context(self) -> SimpleNamespace:
        return SimpleNamespace(**self._methods("push", "pop", "detach"))


CALLS = {
    "Stream": lambda device, stream, event: device.stream(),
    "Event": lambda device, stream, event: device.event(),
    "mem_alloc": lambda device, stream, event: device.device_buffer(8),
    "pagelocked_empty": lambda device, stream, event: device.pinned_buffer(8),
    "memcpy_htod_async": lambda device, stream, event: device.copy_to_device(
        device.device_buffer(8), HostDevice().pageable_buffer(8), stream
    ),
    "memcpy_dtoh_async": lambda device, stream, event: device.copy_to_host(
        HostDevice().pageable_buffer(8), device.device_buffer(8), stream
    ),
    "memcpy_dtod_async": lambda device, stream, event: device.copy_on_device(
        device.device_buffer(8), device.device_buffer(8), stream
    ),
    "start_profiler": lambda device, stream, event: _captured(device),
    "stop_profiler": lambda device, stream, event: _captured(device),
    "mem_get_info": lambda device, stream, event: device.used_bytes(),
    "wait_for_event": lambda device, stream, event: stream.wait_for(event),
    "synchronize": lambda device, stream, event: stream.synchronize(),
    "record": lambda device, stream, event: event.record(stream),
    "query": lambda device, stream, event: event.reached(),
    "time_since": lambda device, stream, event: event.elapsed_ms(event),
    "free": lambda device, stream, event: device.device_buffer(8).close(),
    "free_host": lambda device, stream, event: device.pinned_buffer(8).close(),
    "push": lambda device, stream, event: _adopted(device),
    "pop": lambda device, stream, event: _adopted(device),
    "detach": lambda device, stream, event: device.close(),
}


def _adopted(device: PycudaDevice) -> None:
    with device.adopt_thread():
        pass


def _captured(device: PycudaDevice) -> None:
    with device.captured():
        pass


def on(driver: Driver) -> PycudaDevice:
    info = DeviceInfo(kind="gpu", name="a GPU")
    device = PycudaDevice(driver, driver.context(), info)
    device.profilers = NvtxMarks(cuda_profiler=True)
    return device


def fail(name: str, error: Error) -> DeviceError:
    """What the binding raises when that call of pycuda's does."""
    driver = Driver()
    device = on(driver)
    stream, event = device.stream(), device.event()
    driver.broken[name] = error
    with pytest.raises(DeviceError) as caught:
        CALLS[name](device, stream, event)
    return caught.value


@pytest.mark.parametrize("name", CALLS)
def test_whatever_call_fails_it_is_a_device_error_with_cudas_words(name: str) -> None:
    error = fail(name, LaunchError(f"{name} failed: unspecified launch failure"))
    assert type(error) is DeviceError
    assert error.problem.endswith(f"{name} failed: unspecified launch failure")


@pytest.mark.parametrize("name", CALLS)
def test_out_of_memory_is_distinguished(name: str) -> None:
    error = fail(name, OutOfMemory(f"{name} failed: out of memory"))
    assert type(error) is DeviceMemoryError
    assert error.problem.startswith("out of memory: ")


@pytest.mark.parametrize("name", ["device_buffer", "pinned_buffer"])
def test_memory_that_could_not_be_released_is_not_released_again(name: str) -> None:
    driver = Driver()
    buffer = getattr(on(driver), name)(8)
    driver.broken = {call: LaunchError("unspecified launch failure") for call in ("free", "free_host")}
    with pytest.raises(DeviceError, match="giving back"):
        buffer.close()
    buffer.close()


def test_the_profiler_is_stopped_whatever_happens_while_it_runs() -> None:
    driver = Driver()
    device, driver.broken = on(driver), {"stop_profiler": LaunchError("stopped")}
    with pytest.raises(DeviceError, match="stopped"), device.captured():
        raise ValueError("what is measured fails")
    device.profilers = UNMARKED
    with device.captured():  # which starts none, and so stops none
        pass
