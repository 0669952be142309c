"""Memory for outputs whose size TensorRT knows only after running, with TensorRT-RTX's own base class."""

import numpy as np
import pytest

from tests.support.scripted_device.device import Script, ScriptedDevice
from trtopt.device.tensorrt.allocator import OutputMemory, make_output_allocator
from trtopt.targets import target_named

FLOAT = np.dtype(np.float32)


def test_memory_is_kept_while_it_is_large_enough_and_grows() -> None:
    device = ScriptedDevice()
    memory = OutputMemory(device, FLOAT)
    first = memory.reallocate(100)
    assert memory.reallocate(40) == first
    memory.reallocate(200)
    assert device.used == 200
    memory.notify((5, 4))
    assert (memory.output.shape, memory.output.nbytes) == ((5, 4), 80)
    memory.close()
    memory.close()
    assert device.open == 0


def test_an_empty_output_has_an_address_and_no_bytes() -> None:
    memory = OutputMemory(ScriptedDevice(), FLOAT)
    assert memory.reallocate(0)
    memory.notify((0, 4))
    assert memory.output.nbytes == 0


def test_without_room_tensorrt_gets_no_address_and_the_error_is_kept() -> None:
    memory = OutputMemory(ScriptedDevice(Script(memory_bytes=64)), FLOAT)
    assert memory.reallocate(100) == 0
    assert "out of memory" in str(memory.error)


def test_tensorrts_object_passes_sizes_and_shapes_on() -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    memory = OutputMemory(ScriptedDevice(), FLOAT)
    allocator = make_output_allocator(trt, target_named("rtx"), memory)
    assert isinstance(allocator, trt.IOutputAllocator)
    address = allocator.reallocate_output("y", 0, 64, 256)
    assert address == memory.output.address
    assert allocator.reallocate_output_async("y", 0, 32, 256, 0) == address
    allocator.notify_shape("y", trt.Dims([4, 4]))
    assert memory.output.shape == (4, 4)
