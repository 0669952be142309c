"""Many copies by one call of the driver, which a stand-in carries out in host memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from trtopt.device.cuda import device
from trtopt.errors import DeviceError, DeviceMemoryError
from trtopt.serving.arrays import address_of

IN_STREAM_ORDER = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM of cuda.h
STREAM = 1234567890123


class Driver:
    """What cuda.h of 12.2 says of these calls."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.calls: list[str] = []

    def cuMemcpyAsync(self, target: Any, source: Any, nbytes: Any, stream: Any) -> int:
        self.calls.append("cuMemcpyAsync")
        assert stream.value == STREAM
        assert {type(target), type(source)} == {ctypes.c_uint64}  # CUdeviceptr, not cut to 32 bits
        if not self.status:
            ctypes.memmove(target.value, source.value, nbytes.value)
        return self.status

    def cuGetErrorName(self, status: int, told: Any) -> int:
        told._obj.value = {700: b"CUDA_ERROR_ILLEGAL_ADDRESS"}.get(status)
        return 0


class DriverOfToday(Driver):
    """And of 12.8."""

    def cuMemcpyBatchAsync(self, *given: Any) -> int:
        self.calls.append("cuMemcpyBatchAsync")
        targets, sources, sizes, count, attributes, first, kinds, failed, stream = given
        assert (kinds.value, first._obj.value, stream.value) == (1, 0, STREAM)
        assert ctypes.sizeof(attributes._obj) == 24
        assert ctypes.c_int.from_buffer(attributes._obj).value == IN_STREAM_ORDER
        assert isinstance(failed._obj, ctypes.c_size_t)
        if not self.status:
            array = ctypes.c_uint64 * count.value
            rows = (array.from_address(pointer.value) for pointer in (targets, sources, sizes))
            for target, source, nbytes in zip(*rows, strict=True):
                ctypes.memmove(target, source, nbytes)
        return self.status


def copied(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rows of unlike lengths go to their places, in any order of them."""
    monkeypatch.setattr(device, "load_driver", lambda: driver)
    sources = [np.arange(count, dtype=np.uint8) + 1 for count in (3, 1, 8, 5, 2)]
    target = np.zeros(20, np.uint8)
    ends = np.cumsum([len(source) for source in sources])
    pieces = [
        (address_of(target) + int(end) - len(source), address_of(source), len(source))
        for end, source in zip(ends, sources, strict=True)
    ]
    device.copy_pieces(pieces[::-1], STREAM)
    assert target.tolist() == [*np.concatenate(sources).tolist(), 0]


def test_a_driver_that_can_copies_all_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = DriverOfToday()
    copied(driver, monkeypatch)
    assert driver.calls == ["cuMemcpyBatchAsync"]


def test_an_older_driver_takes_a_call_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    copied(driver, monkeypatch)
    assert driver.calls == ["cuMemcpyAsync"] * 5


@pytest.mark.parametrize("kind", [Driver, DriverOfToday])
@pytest.mark.parametrize(
    ("status", "error", "told"),
    [
        (2, DeviceMemoryError, "out of memory: copying rows"),
        (700, DeviceError, "CUDA failed: copying rows: CUDA_ERROR_ILLEGAL_ADDRESS"),
        (9999, DeviceError, "CUDA failed: copying rows: error 9999"),
    ],
)
def test_a_failure_is_reported_by_cudas_name(
    monkeypatch: pytest.MonkeyPatch, kind: type[Driver], status: int, error: type[DeviceError], told: str
) -> None:
    with pytest.raises(error) as caught:
        copied(kind(status), monkeypatch)
    assert (type(caught.value), caught.value.problem) == (error, told)
