"""What a worker holds: a stream of its own and the engines it has prepared, within a bound of memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import Device, DeviceBuffer, Graph, HostBuffer, Session, Stream
from trtopt.errors import DeviceMemoryError, GraphCaptureError, UsageError
from trtopt.records import Shape
from trtopt.serving.engine_catalogue import Catalogue, Key, Part

_Buffer = TypeVar("_Buffer", HostBuffer, DeviceBuffer)


class Prepared:
    """Runs batches of one size, one at a time, on buffers that it keeps.

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
        self._host = {one.name: self._owned(self._device.pinned_buffer(one.nbytes)) for one in bindings}
        self._buffers = {one.name: self._owned(self._device.device_buffer(one.nbytes)) for one in bindings}
        self._views = {binding.name: binding.view(self._host[binding.name]) for binding in bindings}
        self._context.bind(self._buffers)

    def _owned(self, buffer: _Buffer) -> _Buffer:
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
    def has_graph(self) -> bool:
        """Whether a CUDA graph has been captured."""
        return self._graph is not None

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
        # the first run at new shapes is slow anyway, and one that is not repeated needs no graph
        if self._wants_graph and self._is_warm and self._graph is None:
            self._capture()
        if self._graph is not None:
            self._graph.launch()
        else:
            self._enqueue()
        self._is_warm = True
        self._stream.synchronize()
        return {binding.name: self._views[binding.name] for binding in self._outputs}

    def _enqueue(self) -> None:
        """The inference, and the copies before and after it.

        In one graph they are one call. Each lets go of the interpreter's lock, and waits for it afterwards if
        other threads compute in Python.
        """
        for binding in self._inputs:
            name = binding.name
            self._device.copy_to_device(self._buffers[name], self._host[name], self._stream)
        self._context.enqueue(self._stream)
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


Outputs = dict[str, NDArray[np.generic]]


_SHARED_BYTES = 1 << 20
"""What an answer may keep in memory of others that are gone: 128 rows of 4 KB take 30 µs so, else 420."""


class Worker:
    """Runs rows on the engines that suit them, in one thread at a time.

    Contexts, buffers and graphs are made when they are first needed, and the least recently used give way
    when the next would take more than `bound_bytes` of the device. Any thread may see what is prepared.
    """

    def __init__(self, device: Device, catalogue: Catalogue, *, bound_bytes: int, graphs: bool) -> None:
        self._device, self._catalogue = device, catalogue
        self._bound_bytes, self._graphs = bound_bytes, graphs
        self._prepared: OrderedDict[tuple[int, int, Key], Prepared] = OrderedDict()
        self._stream = device.stream()
        self.evicted = 0
        self.graph_refused: str | None = None

    def run(self, parts: Sequence[Part]) -> list[Outputs]:
        """Run parts of one key; what exceeds the largest engine runs one batch after the other.

        Returns:
            For each part its outputs as [rows, …], in memory that no other run writes to; parts share up to
            1 MiB of it.
        """
        key = parts[0].key
        choice = self._catalogue.choice(key)
        counts = [part.rows for part in parts]
        pieces = choice.selector.pieces(sum(counts))
        given = {name: [part.tensors[name] for part in parts] for name in parts[0].tensors}
        if len(pieces) == 1:
            outputs = self._run_on((choice.engines[pieces[0].offer], pieces[0].batch, key), given)
            return _taken_apart(outputs, counts)
        whole = {name: np.concatenate(arrays) for name, arrays in given.items()}
        ran: list[Outputs] = []
        begin = 0
        for piece in pieces:
            rows = {name: [array[begin : begin + piece.rows]] for name, array in whole.items()}
            outputs = self._run_on((choice.engines[piece.offer], piece.batch, key), rows)
            ran.append({name: output[: piece.rows].copy() for name, output in outputs.items()})
            begin += piece.rows
        return _taken_apart({name: np.concatenate([one[name] for one in ran]) for name in ran[0]}, counts)

    @property
    def prepared(self) -> list[Prepared]:
        """What is prepared now."""
        return list(self._prepared.values())

    def _run_on(
        self, name: tuple[int, int, Key], rows: Mapping[str, Sequence[NDArray[np.generic]]]
    ) -> Outputs:
        prepared = self._prepared.get(name) or self._prepare(name)
        self._prepared.move_to_end(name)
        outputs = prepared.run(rows)
        self.graph_refused = prepared.graph_refused or self.graph_refused
        return outputs

    def _prepare(self, name: tuple[int, int, Key]) -> Prepared:
        """Other programs use the device, too: without memory left, all but this one gives way."""
        try:
            made = self._make(name)
        except DeviceMemoryError:
            if not self._prepared:
                raise
            self._make_room(self._bound_bytes)
            made = self._make(name)
        self._prepared[name] = made
        return made

    def _make(self, name: tuple[int, int, Key]) -> Prepared:
        engine, batch, key = name
        return Prepared(
            self._device,
            self._stream,
            self._catalogue.engines[engine].session,
            self._catalogue.shapes(key, batch),
            graphs=self._graphs,
            make_room=self._make_room,
        )

    def _make_room(self, nbytes: int) -> None:
        while self._prepared and nbytes + sum(one.nbytes for one in self.prepared) > self._bound_bytes:
            _, oldest = self._prepared.popitem(last=False)
            self.evicted += 1
            oldest.close()

    def close(self) -> None:
        """Give everything back, whatever of it fails."""
        with ExitStack() as resources:
            resources.callback(self._stream.close)
            for prepared in self._prepared.values():
                resources.callback(prepared.close)
            self._prepared = OrderedDict()


def _taken_apart(outputs: Outputs, counts: Sequence[int]) -> list[Outputs]:
    """The rows of each part, in memory that no other run writes to.

    Those of a small output share a copy of it, which lives as long as one of them does.
    """
    shared = {name: len(counts) > 1 and rows.nbytes <= _SHARED_BYTES for name, rows in outputs.items()}
    outputs = {name: rows.copy() if shared[name] else rows for name, rows in outputs.items()}
    return [
        {
            name: rows[end - count : end] if shared[name] else rows[end - count : end].copy()
            for name, rows in outputs.items()
        }
        for count, end in zip(counts, accumulate(counts), strict=True)
    ]
