"""Device memory for outputs whose size TensorRT knows only when it has run."""

from __future__ import annotations

from typing import Any

import numpy as np

from trtopt.device.api import Device, DeviceBuffer, SizedOutput
from trtopt.errors import DeviceError
from trtopt.records import Shape
from trtopt.targets import Target


class OutputMemory:
    """What TensorRT's allocator of one output asks for; `growths` counts how often it had to grow."""

    def __init__(self, device: Device, dtype: np.dtype[np.generic]) -> None:
        self._device, self._dtype = device, dtype
        self._buffer: DeviceBuffer | None = None
        self._shape: Shape = (0,)
        self.growths = 0
        self.error: DeviceError | None = None

    def reallocate(self, nbytes: int) -> int:
        """The address of at least `nbytes`; 0 where there is no room, with `error` set."""
        if self._buffer is not None and self._buffer.nbytes >= nbytes:
            return self._buffer.address
        self.growths += self._buffer is not None
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
        """Release the memory."""
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None


def make_output_allocator(trt: Any, target: Target, memory: OutputMemory) -> Any:
    """TensorRT's object; the caller keeps it alive."""

    class OutputAllocator(trt.IOutputAllocator):  # type: ignore[misc]  # known only at run time
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)

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
