"""Memory for a context's inputs and outputs, on the device and on the host."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing

import numpy as np
from numpy.typing import NDArray

from trtopt.data.fit import convert_input
from trtopt.data.packing import unvectorise, vectorise
from trtopt.device.api import (
    Binding,
    Context,
    Device,
    DeviceBuffer,
    HostBuffer,
    Inputs as Inputs,
    Session,
    Stream,
)
from trtopt.records import Shape
from trtopt.records.tensors import VECTORS

Bindings = tuple[Binding, ...]


def of_fixed_size(bindings: Bindings) -> Bindings:
    """Those whose size is known before running."""
    return tuple(binding for binding in bindings if not binding.is_data_dependent)


def device_buffers(device: Device, bindings: Bindings, resources: ExitStack) -> dict[str, DeviceBuffer]:
    """Device memory for every input and output of fixed size; `resources` gives it back."""
    buffers = {}
    for binding in of_fixed_size(bindings):
        buffers[binding.name] = device.device_buffer(binding.nbytes)
        resources.callback(buffers[binding.name].close)
    return buffers


def host_buffers(
    device: Device, bindings: Bindings, data: Inputs, resources: ExitStack, *, pinned: bool = True
) -> dict[str, HostBuffer]:
    """Host memory for every input and output of fixed size, page-locked or not, with the input data in it."""
    allocate = device.pinned_buffer if pinned else device.pageable_buffer
    buffers = {}
    for binding in of_fixed_size(bindings):
        buffers[binding.name] = allocate(binding.nbytes)
        resources.callback(buffers[binding.name].close)
    put(bindings, data, buffers)
    return buffers


def put(bindings: Bindings, data: Inputs, buffers: Mapping[str, HostBuffer]) -> None:
    """Write the input data into host memory."""
    for binding in bindings:
        if binding.is_input:
            given = convert_input(binding.name, data[binding.name], binding.dtype)
            array = np.ascontiguousarray(vectorise(given, binding.layout))
            buffers[binding.name].array[: array.nbytes] = array.reshape(-1).view(np.uint8)


def ready_context(
    device: Device, session: Session, shapes: Mapping[str, Shape], data: Inputs, resources: ExitStack
) -> tuple[Context, Stream]:
    """A context with buffers of the data, and a stream; `resources` closes them."""
    context = resources.enter_context(closing(session.context(shapes)))
    stream = resources.enter_context(closing(device.stream()))
    buffers = device_buffers(device, context.bindings, resources)
    host = host_buffers(device, context.bindings, data, resources)
    fill(device, context.bindings, buffers, host, stream)
    context.bind(buffers)
    return context, stream


def array_in(buffer: HostBuffer, binding: Binding) -> NDArray[np.generic]:
    """A copy of the input or output that a buffer holds, in its linear shape."""
    count = int(np.prod(binding.stored_shape, dtype=np.int64))
    values: NDArray[np.generic] = buffer.array.copy().view(binding.dtype)
    stored = values[:count].reshape(binding.stored_shape)
    return unvectorise(stored, binding.layout, binding.shape[1]) if binding.layout in VECTORS else stored


def fill(
    device: Device,
    bindings: Bindings,
    target: Mapping[str, DeviceBuffer],
    source: Mapping[str, HostBuffer],
    stream: Stream,
) -> None:
    """Put the input data into device memory, so that any contract starts from real data."""
    for binding in bindings:
        if binding.is_input:
            device.copy_to_device(target[binding.name], source[binding.name], stream)
    stream.synchronize()
