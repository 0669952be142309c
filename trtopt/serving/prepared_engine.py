"""One engine ready at one set of shapes: a context, its buffers and, from the second run on, CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import Binding, Device, DeviceBuffer, Graph, HostBuffer, Session, Stream
from trtopt.device.sized_outputs import SizedCopies, require_fixed_sizes
from trtopt.errors import DeviceMemoryError, GraphCaptureError, UsageError
from trtopt.records import Shape
from trtopt.serving.arrays import Region, Tensor, address_of
from trtopt.serving.engine_catalogue import Part
from trtopt.serving.row_copying import Copier, Cut

_ALIGNMENT = 256
"""Bytes; TensorRT wants it of an input's address, and whatever allocates on the device keeps to it."""

LOCKED_BYTES = 1 << 20
"""Of an input for the batch: below that the host copies page-locked rows as well, in less than 100 µs, and
all go to the device within the graph, where each would be a copy of its own.
"""

SMALL_BYTES = 1 << 18
"""Up to here a copy on the host is faster than rebinding ONNX Runtime's buffer, which took 28 µs."""


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
        copier: Copier,
        *,
        graphs: bool,
        make_room: Callable[[int], None],
    ) -> None:
        self._device, self._stream, self._copier = device, stream, copier
        self._on_host = device.info.kind == "cpu"
        self._resources = ExitStack()
        self._wants_graphs = graphs
        self._graphs: dict[bool, Graph] = {}
        """With copies of all inputs to the device, and without; both copy the outputs to the host."""
        self._is_warm = self._is_bound = False
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
        self._outputs = [one for one in bindings if not one.is_input and not one.is_data_dependent]
        self.sized_names = frozenset(one.name for one in bindings if one.is_data_dependent)
        self._sized = SizedCopies(self._device, self._context)
        self._resources.callback(self._sized.close)
        bindings = tuple(one for one in bindings if not one.is_data_dependent)
        self._batch = self._inputs[0].shape[0]
        self._check_outputs()
        self.nbytes = activations + sum(binding.nbytes for binding in bindings)
        make_room(self.nbytes)
        self._host = {binding.name: self._host_buffer(binding) for binding in bindings}
        self._buffers = {binding.name: self._device_buffer(binding) for binding in bindings}
        self._views = {binding.name: _view(self._host[binding.name], binding) for binding in bindings}

    def _host_buffer(self, binding: Binding) -> HostBuffer:
        buffer = self._device.pinned_buffer(binding.nbytes)
        self._resources.callback(buffer.close)
        return buffer

    def _device_buffer(self, binding: Binding) -> DeviceBuffer:
        if self._on_host:
            return Region(address_of(self._host[binding.name].array), binding.nbytes)
        buffer = self._device.device_buffer(binding.nbytes)
        self._resources.callback(buffer.close)
        return buffer

    def _check_outputs(self) -> None:
        for binding in self._outputs:
            if binding.shape[:1] != (self._batch,):
                raise UsageError(
                    f"output {binding.name!r} has the shape {binding.shape} at batch {self._batch}",
                    "requests share batches along axis 0 of every output: give the model such an axis",
                )

    @property
    def graphs(self) -> int:
        """How many CUDA graphs have been captured."""
        return len(self._graphs)

    def run(self, parts: Sequence[Part], cuts: Sequence[Cut]) -> dict[str, NDArray[np.generic]]:
        """Run the parts' rows as one batch, padded up by repeating the last one.

        Returns:
            Every output as [batch, …], in memory that the next run writes to; one whose size depends on data
            as the model gives it.
        """
        foreign: dict[str, DeviceBuffer] = {}
        given = [[parts[cut.part].tensors[binding.name] for cut in cuts] for binding in self._inputs]
        kept = [self._staying(binding, tensors) for binding, tensors in zip(self._inputs, given, strict=True)]
        from_host = not self._on_host and not any(any(stays) for stays in kept)
        for binding, tensors, stays in zip(self._inputs, given, kept, strict=True):
            region = self._in_place(binding, tensors[0], cuts[0]) if len(cuts) == 1 else None
            if region is None:
                self._fill(binding, tensors, cuts, stays)
                if not self._on_host and not from_host:
                    self._gather(binding, tensors, cuts, stays)
            else:
                foreign[binding.name] = region
        self._launch(foreign, from_host)
        self._stream.synchronize()
        outputs = {binding.name: self._views[binding.name] for binding in self._outputs}
        if not self.sized_names:
            return outputs
        found = outputs | self._sized.arrays()
        return {
            binding.name: found[binding.name] for binding in self._context.bindings if not binding.is_input
        }

    def _in_place(self, binding: Binding, tensor: Tensor, cut: Cut) -> Region | None:
        """The rows where they lie, if they fill the batch and the engine can read them there."""
        rows = cut.stop - cut.start
        if rows != self._batch:
            return None
        if tensor.host is None:
            row_bytes = binding.nbytes // self._batch
            region = Region(tensor.device_address + cut.start * row_bytes, rows * row_bytes)
            if region.address % _ALIGNMENT:
                return None
            self._follow([tensor])
            return region
        array = tensor.host[cut.start : cut.stop]
        if not self._on_host or array.nbytes < SMALL_BYTES:
            return None
        is_plain = array.flags.c_contiguous and array.flags.aligned
        return Region(address_of(array), array.nbytes) if is_plain else None

    def _follow(self, tensors: Sequence[Tensor]) -> None:
        for other in {tensor.after for tensor in tensors if tensor.after is not None}:
            self._device.follow(self._stream, other)

    def _staying(self, binding: Binding, tensors: Sequence[Tensor]) -> list[bool]:
        """Of each, whether the host has nothing to do with it: the device reads it where it is."""
        if self._on_host:
            return [False] * len(tensors)
        reads_host = binding.nbytes >= LOCKED_BYTES
        return [tensor.device_address != 0 and (tensor.host is None or reads_host) for tensor in tensors]

    def _fill(
        self, binding: Binding, tensors: Sequence[Tensor], cuts: Sequence[Cut], stays: Sequence[bool]
    ) -> None:
        """Put the rows that the host copies into the input's own memory there."""
        rows = [
            (cut.at, tensor.host[cut.start : cut.stop])
            for tensor, cut, is_there in zip(tensors, cuts, stays, strict=True)
            if tensor.host is not None and not is_there
        ]
        if not rows:
            return
        view, filled = self._views[binding.name], _filled(cuts)
        self._copier.fill(view, rows)
        if not stays[-1]:
            view[filled:] = view[filled - 1]

    def _gather(
        self, binding: Binding, tensors: Sequence[Tensor], cuts: Sequence[Cut], stays: Sequence[bool]
    ) -> None:
        """Put all rows into the input's own buffer: first what the host has, then the others, by one call."""
        own, row_bytes = self._buffers[binding.name], binding.nbytes // self._batch
        there = [
            (tensor, cut) for tensor, cut, is_there in zip(tensors, cuts, stays, strict=True) if is_there
        ]
        if len(there) < len(tensors):
            self._device.copy_to_device(own, self._host[binding.name], self._stream)
        if not there:
            return
        self._follow([tensor for tensor, _ in there])
        pieces = [
            (
                own.address + cut.at * row_bytes,
                tensor.device_address + cut.start * row_bytes,
                (cut.stop - cut.start) * row_bytes,
            )
            for tensor, cut in there
        ]
        if stays[-1]:
            last = tensors[-1].device_address + (cuts[-1].stop - 1) * row_bytes
            padding = range(_filled(cuts), self._batch)
            pieces += [(own.address + row * row_bytes, last, row_bytes) for row in padding]
        self._device.gather(pieces, self._stream)

    def _launch(self, foreign: Mapping[str, DeviceBuffer], from_host: bool) -> None:
        """A graph knows only the buffers that it was captured with: other memory takes a plain run.

        The first run at new shapes is slow anyway, and one that is not repeated needs no graph.
        """
        if foreign:
            self._is_bound = False
            self._context.bind({**self._buffers, **foreign})
            self._enqueue(from_host)
            return
        if self._wants_graphs and self._is_warm and from_host not in self._graphs:
            self._capture(from_host)
        if graph := self._graphs.get(from_host):
            graph.launch(self._stream)
            return
        self._bind()
        self._enqueue(from_host)
        self._is_warm = True

    def _enqueue(self, from_host: bool) -> None:
        """The inference, and the copies before and after it.

        In one graph they are one call. Each lets go of the interpreter's lock, and waits for it afterwards if
        other threads compute in Python.
        """
        if from_host:
            for binding in self._inputs:
                name = binding.name
                self._device.copy_to_device(self._buffers[name], self._host[name], self._stream)
        self._context.enqueue(self._stream)
        if not self._on_host:
            for binding in self._outputs:
                name = binding.name
                self._device.copy_to_host(self._host[name], self._buffers[name], self._stream)
        self._sized.enqueue(self._stream)

    def _capture(self, from_host: bool) -> None:
        self._bind()
        try:
            require_fixed_sizes(self._context)
            graph = self._device.capture(self._stream, lambda: self._enqueue(from_host))
        except (GraphCaptureError, DeviceMemoryError) as error:  # a graph takes memory of its own
            self._wants_graphs = False
            self.graph_refused = error.problem
            return
        self._graphs[from_host] = graph
        self._resources.callback(graph.close)

    def _bind(self) -> None:
        if not self._is_bound:
            self._context.bind(self._buffers)
            self._is_bound = True

    def close(self) -> None:
        """Give everything back, in reverse order, whatever of it fails."""
        self._resources.close()


def _filled(cuts: Sequence[Cut]) -> int:
    """Rows of the batch that are somebody's."""
    return cuts[-1].at + cuts[-1].stop - cuts[-1].start


def _view(buffer: HostBuffer, binding: Binding) -> NDArray[np.generic]:
    """A buffer's memory as the array that it holds."""
    count = int(np.prod(binding.stored_shape, dtype=np.int64))
    view: NDArray[np.generic] = buffer.array[: count * binding.dtype.itemsize].view(binding.dtype)
    return view.reshape(binding.stored_shape)
