"""What CUDA and NVML tell of a GPU's memory."""

from __future__ import annotations

from trtopt.device.api import Device
from trtopt.device.nvml import device_memory_of

GIB = 1 << 30


def test_memory_that_is_taken_is_not_free_any_more(device: Device) -> None:
    before = device.device_memory()
    assert before is not None
    taken = device.device_buffer(GIB)
    after = device.device_memory()
    taken.close()
    assert after is not None
    assert after.total_bytes == before.total_bytes
    assert before.free_bytes - after.free_bytes == GIB
    assert after.holders


def test_nvml_tells_the_same_without_a_context_of_cudas(device: Device) -> None:
    told, asked = device_memory_of(device.info), device.device_memory()
    assert told is not None
    assert asked is not None
    assert abs(told.free_bytes - asked.free_bytes) < GIB
    assert told.total_bytes >= asked.total_bytes
