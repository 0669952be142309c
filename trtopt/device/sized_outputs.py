"""Outputs whose size is known only after running: their way to the host, and why no graph captures them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import Context, Device, HostBuffer, SizedOutput, Stream
from trtopt.errors import GraphCaptureError


def capture_inference(
    device: Device, context: Context, stream: Stream, resources: ExitStack
) -> Callable[[], None]:
    """Capture one inference in a CUDA graph, which `resources` closes; what launches it.

    What allocates its outputs while it runs is refused as what the device cannot capture is.
    """
    names = [binding.name for binding in context.bindings if binding.is_data_dependent]
    if names:
        raise GraphCaptureError(f"the size of {', '.join(map(repr, names))} is known only after running")
    graph = device.capture(stream, context.launcher(stream))
    resources.callback(graph.close)
    return graph.launch


class SizedCopies:
    """Host memory for a context's outputs of data-dependent size; it grows with them."""

    def __init__(self, device: Device, context: Context) -> None:
        self._device, self._context = device, context
        self._buffers: dict[str, HostBuffer] = {}
        self._last: dict[str, SizedOutput] = {}

    def enqueue(self, stream: Stream) -> None:
        """Enqueue the copies of what the last inference left, before the next one is enqueued."""
        self._last = dict(self._context.sized_outputs())
        for name, output in self._last.items():
            buffer = self._buffers.get(name)
            if buffer is None or buffer.nbytes < output.nbytes:
                if buffer is not None:
                    stream.synchronize()
                    buffer.close()
                buffer = self._buffers[name] = self._device.pinned_buffer(max(1, output.nbytes))
            if output.nbytes:
                self._device.copy_to_host(HostBuffer(buffer.array[: output.nbytes]), output, stream)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Copies of the outputs, each in its own shape, once the stream has been waited for."""
        return {
            name: self._buffers[name].array[: output.nbytes].copy().view(output.dtype).reshape(output.shape)
            for name, output in self._last.items()
        }

    def close(self) -> None:
        """Release the memory."""
        for buffer in self._buffers.values():
            buffer.close()
        self._buffers = {}
