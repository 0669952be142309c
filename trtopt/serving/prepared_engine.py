"""One engine ready at one set of shapes: a context, its buffers and, from the second run on, a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import Binding, Device, DeviceBuffer, Graph, HostBuffer, Session, Stream
from trtopt.errors import DeviceMemoryError, GraphCaptureError, UsageError
from trtopt.records import Shape


class Region(NamedTuple):
    """Memory that somebody else releases, as a `device.api.DeviceBuffer`."""

    address: int
    nbytes: int

    def close(self) -> None:
        """Nothing."""


class Prepared:
    """Runs batches of one size, one at a time, on buffers that it keeps.

    Where the host is the device, one buffer is both host and device memory, and nothing is copied to and fro.
    `make_room` is called with the number of bytes before device memory is allocated.
    """

    def __init__(
        self,
        device: Device,
        stream: Stream,
        session: Session,
        shapes: Mapping[str, Shape],
        *,
        graphs: bool,
        make_room: Callable[[int], None],
    ) -> None:
        self._device, self._stream = device, stream
        self._on_host = device.info.kind == "cpu"
        self._resources = ExitStack()
        self._wants_graph = graphs
        self._graph: Graph | None = None
        self._is_warm = False
        self.graph_refused: str | None = None
        self.nbytes = 0
        try:
            self._open(session, shapes, make_room)
        except BaseException:
            self.close()
            raise

    def _open(self, session: Session, shapes: Mapping[str, Shape], make_room: Callable[[int], None]) -> None:
        activations = session.device_memory_bytes or 0
        make_room(activations)
        self._context = session.context(shapes)
        self._resources.callback(self._context.close)
        bindings = self._context.bindings
        self._inputs = [binding for binding in bindings if binding.is_input]
        self._outputs = [binding for binding in bindings if not binding.is_input]
        self._batch = self._inputs[0].shape[0]
        self._check_outputs()
        self.nbytes = activations + sum(binding.nbytes for binding in bindings)
        make_room(self.nbytes)
        self._host = {binding.name: self._host_buffer(binding) for binding in bindings}
        self._buffers = {binding.name: self._device_buffer(binding) for binding in bindings}
        self._views = {binding.name: _view(self._host[binding.name], binding) for binding in bindings}
        self._context.bind(self._buffers)

    def _host_buffer(self, binding: Binding) -> HostBuffer:
        buffer = self._device.pinned_buffer(binding.nbytes)
        self._resources.callback(buffer.close)
        return buffer

    def _device_buffer(self, binding: Binding) -> DeviceBuffer:
        if self._on_host:
            return Region(int(self._host[binding.name].array.ctypes.data), binding.nbytes)
        buffer = self._device.device_buffer(binding.nbytes)
        self._resources.callback(buffer.close)
        return buffer

    def _check_outputs(self) -> None:
        for binding in self._outputs:
            if binding.is_data_dependent:
                raise UsageError(
                    f"output {binding.name!r} has a size that depends on the data",
                    "requests share batches, and it can be neither divided nor cleared of padding: build the "
                    "model without the nodes that select, as NonZero, and select after it",
                )
            if binding.shape[:1] != (self._batch,):
                raise UsageError(
                    f"output {binding.name!r} has the shape {binding.shape} at batch {self._batch}",
                    "requests share batches along axis 0 of every output: give the model such an axis",
                )

    @property
    def graphs(self) -> int:
        """How many CUDA graphs have been captured."""
        return int(self._graph is not None)

    def run(self, rows: Mapping[str, Sequence[NDArray[np.generic]]]) -> dict[str, NDArray[np.generic]]:
        """Run each input's rows as one batch, padded up by repeating the last one.

        Returns:
            Every output as [batch, …], in memory that the next run writes to.
        """
        for binding in self._inputs:
            view, given = self._views[binding.name], rows[binding.name]
            filled = sum([len(array) for array in given])
            np.concatenate(given, out=view[:filled])
            view[filled:] = view[filled - 1]
        self._launch()
        self._stream.synchronize()
        return {binding.name: self._views[binding.name] for binding in self._outputs}

    def _launch(self) -> None:
        """The first run at new shapes is slow anyway, and one that is not repeated needs no graph."""
        if self._wants_graph and self._is_warm and self._graph is None:
            self._capture()
        if self._graph is not None:
            self._graph.launch(self._stream)
        else:
            self._enqueue()
        self._is_warm = True

    def _enqueue(self) -> None:
        """The inference, and the copies before and after it.

        In one graph they are one call. Each lets go of the interpreter's lock, and waits for it afterwards if
        other threads compute in Python.
        """
        if not self._on_host:
            for binding in self._inputs:
                name = binding.name
                self._device.copy_to_device(self._buffers[name], self._host[name], self._stream)
        self._context.enqueue(self._stream)
        if not self._on_host:
            for binding in self._outputs:
                name = binding.name
                self._device.copy_to_host(self._host[name], self._buffers[name], self._stream)

    def _capture(self) -> None:
        try:
            self._graph = self._device.capture(self._stream, self._enqueue)
        except (GraphCaptureError, DeviceMemoryError) as error:  # a graph takes memory of its own
            self._wants_graph = False
            self.graph_refused = error.problem
            return
        self._resources.callback(self._graph.close)

    def close(self) -> None:
        """Give everything back, in reverse order, whatever of it fails."""
        self._resources.close()


def _view(buffer: HostBuffer, binding: Binding) -> NDArray[np.generic]:
    """A buffer's memory as the array that it holds."""
    count = int(np.prod(binding.stored_shape, dtype=np.int64))
    view: NDArray[np.generic] = buffer.array[: count * binding.dtype.itemsize].view(binding.dtype)
    return view.reshape(binding.stored_shape)
