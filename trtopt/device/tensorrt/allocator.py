"""GPU allocators: one that records every call, and one for outputs whose size is known only after running.

TensorRT's own default allocator is `cudaMallocAsync`; with the first attached memory comes from plain
allocations, so no timing taken meanwhile counts.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from trtopt.device.api import AllocationTracker, Device, DeviceBuffer, SizedOutput
from trtopt.errors import DeviceError, DeviceMemoryError
from trtopt.records import Shape
from trtopt.targets import Target

_CUDA_ALIGNMENT = 256  # what any allocation of CUDA's has at least (CUDA C++ Programming Guide)


class TrackedMemory:
    """Allocates from a device and records it in a tracker.

    Thread-safe as far as `dict` operations are: each address belongs to one allocation at a time.
    """

    def __init__(self, device: Device, tracker: AllocationTracker) -> None:
        self._device = device
        self._tracker = tracker
        self._live: dict[int, DeviceBuffer] = {}

    def allocate(self, size: int, alignment: int, stream: int | None = None) -> int:
        """A multiple of `alignment`, or 0 when there is not that much left: TensorRT expects no exception."""
        if size == 0:
            return 0
        beyond = alignment if alignment > _CUDA_ALIGNMENT else 0
        try:
            buffer = self._device.device_buffer(size + beyond)
        except DeviceMemoryError:
            self._tracker.add("allocate", size, 0, stream)
            return 0
        address = -(-buffer.address // beyond) * beyond if beyond else buffer.address
        self._live[address] = buffer
        self._tracker.add("allocate", buffer.nbytes, address, stream)
        return address

    def deallocate(self, address: int, stream: int | None = None) -> bool:
        """Give an address back; False if it is none of ours."""
        if address == 0:
            return True
        buffer = self._live.pop(address, None)
        if buffer is None:
            return False
        self._tracker.add("deallocate", buffer.nbytes, address, stream)
        buffer.close()
        return True

    def reallocate(self, size: int) -> int:
        """Growing in place is not offered: TensorRT then allocates, copies and deallocates itself."""
        self._tracker.add("reallocate", size, 0)
        return 0


def address_of(memory: Any) -> int:
    """A pointer as the bindings hand it over: an integer, a capsule, or None."""
    if memory is None:
        return 0
    if isinstance(memory, int):
        return memory
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, (ctypes.py_object,)
    return get_pointer(memory, get_name(memory)) or 0


def make_allocator(trt: Any, target: Target, device: Device, tracker: AllocationTracker) -> Any:
    """An allocator object for `Runtime.gpu_allocator`; it must outlive the runtime and all its engines."""
    memory = TrackedMemory(device, tracker)
    return _make_async(trt, memory) if target.async_allocator else _make_plain(trt, memory)


def _make_plain(trt: Any, memory: TrackedMemory) -> Any:
    """8.6: Python's IGpuAllocator calls only the synchronous trio."""

    class Allocator(trt.IGpuAllocator):  # type: ignore[misc]  # the base class is only known at run time
        def allocate(self, size: int, alignment: int, flags: int) -> int:
            return memory.allocate(size, alignment)

        def reallocate(self, address: Any, alignment: int, new_size: int) -> int:
            return memory.reallocate(new_size)

        def deallocate(self, memory_: Any) -> bool:
            return memory.deallocate(address_of(memory_))

    return Allocator()


def _make_async(trt: Any, memory: TrackedMemory) -> Any:
    """10.0 on: IGpuAsyncAllocator calls only the `_async` pair.

    The order of the last two arguments of `allocate_async` changed at 11.2 and RTX 1.6; both are integers
    and only the stream is of interest, so the larger is taken: flags are a mask of few low bits, a stream
    is an address (or 0, the default stream).
    """

    class Allocator(trt.IGpuAsyncAllocator):  # type: ignore[misc]  # the base class is only known at run time
        def allocate_async(self, size: int, alignment: int, third: Any, fourth: Any) -> int:
            return memory.allocate(size, alignment, max(address_of(third), address_of(fourth)))

        def reallocate(self, address: Any, alignment: int, new_size: int) -> int:
            return memory.reallocate(new_size)

        def deallocate_async(self, memory_: Any, stream: Any) -> bool:
            return memory.deallocate(address_of(memory_), address_of(stream))

    return Allocator()


class OutputMemory:
    """What TensorRT's allocator of one output asks for."""

    def __init__(self, device: Device, dtype: np.dtype[np.generic]) -> None:
        self._device, self._dtype = device, dtype
        self._buffer: DeviceBuffer | None = None
        self._shape: Shape = (0,)
        self.error: DeviceError | None = None

    def reallocate(self, nbytes: int) -> int:
        """The address of at least `nbytes`; 0 where there is no room, with `error` set."""
        if self._buffer is not None and self._buffer.nbytes >= nbytes:
            return self._buffer.address
        self.close()
        try:
            self._buffer = self._device.device_buffer(max(1, nbytes))
        except DeviceError as error:  # TensorRT cannot take an exception
            self.error = error
            return 0
        return self._buffer.address

    def notify(self, shape: Shape) -> None:
        """TensorRT knows the shape."""
        self._shape = shape

    @property
    def output(self) -> SizedOutput:
        """What the last inference left."""
        address = self._buffer.address if self._buffer is not None else 0
        return SizedOutput(address, self._dtype, self._shape)

    def close(self) -> None:
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None


def make_output_allocator(trt: Any, target: Target, memory: OutputMemory) -> Any:
    """TensorRT's object; the caller keeps it alive."""

    class OutputAllocator(trt.IOutputAllocator):  # type: ignore[misc]  # known only at run time
        def reallocate_output(self, tensor_name: str, given: Any, size: int, alignment: int) -> int:
            return memory.reallocate(size)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            memory.notify(tuple(shape))

    if not target.async_allocator:
        return OutputAllocator()

    class AsyncOutputAllocator(OutputAllocator):
        def reallocate_output_async(
            self, tensor_name: str, given: Any, size: int, alignment: int, stream: Any
        ) -> int:
            return memory.reallocate(size)

    return AsyncOutputAllocator()
