"""One inference stream: a context, its buffer sets, streams and events.

A lane has `queue_ahead + 1` slots, each with events of its own. With transfers each slot also has a buffer
set of its own, so that copies for the next query overlap the present one's compute; without, all slots
share one set. A slot is used again only after the host has waited for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import (
    Binding,
    Context,
    Device,
    DeviceBuffer,
    Event,
    Graph,
    HostBuffer,
    Session,
    Stream,
)
from trtopt.errors import GraphCaptureError
from trtopt.records import Contract, Shape

Inputs = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Query:
    """One finished query; host times in seconds on the device's clock, durations in milliseconds."""

    start_s: float
    end_s: float
    enqueue_ms: float
    gpu_compute_ms: float
    h2d_ms: float | None
    d2h_ms: float | None


class BufferSet:
    """Device and host memory for all inputs and outputs of a context; `pinned`: page-locked host memory."""

    def __init__(
        self, device: Device, bindings: tuple[Binding, ...], resources: ExitStack, *, pinned: bool = True
    ) -> None:
        self.device: dict[str, DeviceBuffer] = {}
        self.host: dict[str, HostBuffer] = {}
        allocate = device.pinned_buffer if pinned else device.pageable_buffer
        for binding in bindings:
            self.device[binding.name] = device.device_buffer(binding.nbytes)
            resources.callback(self.device[binding.name].close)
            self.host[binding.name] = allocate(binding.nbytes)
            resources.callback(self.host[binding.name].close)


class Lane:
    """Runs queries on one context; `close` gives everything back, in reverse order of making.

    `graph_refused` says why there is no CUDA graph although the contract asks for one.
    """

    def __init__(
        self, device: Device, session: Session, shapes: Mapping[str, Shape], data: Inputs, contract: Contract
    ) -> None:
        self._resources = ExitStack()
        self.graph_refused: str | None = None
        try:
            self._open(device, session, shapes, data, contract)
        except BaseException:
            self.close()
            raise

    def _open(
        self, device: Device, session: Session, shapes: Mapping[str, Shape], data: Inputs, contract: Contract
    ) -> None:
        self._device = device
        self._context = session.context(shapes)
        self._resources.callback(self._context.close)
        self._streams = Streams(device, contract.transfers, self._resources)
        slots = contract.queue_ahead + 1
        self._sets = [
            BufferSet(device, self._context.bindings, self._resources, pinned=contract.pinned)
            for _ in range(slots if contract.transfers else 1)
        ]
        for buffers in self._sets:
            fill(device, self._context.bindings, buffers, data, self._streams.compute)
        self._graphs = self._prepare(contract.graph)
        self.slots = [
            Slot(
                device,
                self._context,
                self._streams,
                self._sets[index % len(self._sets)],
                self._graphs[index % len(self._graphs)],
                contract,
                self._resources,
            )
            for index in range(slots)
        ]

    def _prepare(self, wants_graph: bool) -> list[Graph | None]:
        """Run each buffer set once (the first enqueue after a shape change is slow), then capture it."""
        graphs: list[Graph | None] = []
        for buffers in self._sets:
            self._context.bind(buffers.device)
            self._context.enqueue(self._streams.compute)
            self._streams.compute.synchronize()
            graphs.append(self._capture() if wants_graph and self.graph_refused is None else None)
        return graphs if self.graph_refused is None else [None] * len(graphs)

    def _capture(self) -> Graph | None:
        stream = self._streams.compute
        try:
            graph = self._device.capture(stream, lambda: self._context.enqueue(stream))
        except GraphCaptureError as error:
            self.graph_refused = error.problem
            return None
        self._resources.callback(graph.close)
        return graph

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """The context's inputs and outputs."""
        return self._context.bindings

    def bare(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """What launches one query of the first slot, without copies and events, and what waits for it."""
        stream, graph = self._streams.compute, self._graphs[0]
        launch = self._context.enqueue if graph is None else graph.launch
        return partial(launch, stream), stream.synchronize

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        """The outputs of the first buffer set's last query; call it with no query in flight."""
        buffers, stream = self._sets[0], self._streams.compute
        results = {}
        for binding in self._context.bindings:
            if not binding.is_input:
                self._device.copy_to_host(buffers.host[binding.name], buffers.device[binding.name], stream)
                stream.synchronize()
                raw = buffers.host[binding.name].array.copy()
                count = int(np.prod(binding.shape, dtype=np.int64))
                results[binding.name] = raw.view(binding.dtype)[:count].reshape(binding.shape)
        return results

    def close(self) -> None:
        """Give everything back."""
        self._resources.close()


class Streams:
    """Compute and, with transfers, one stream for each direction."""

    def __init__(self, device: Device, transfers: bool, resources: ExitStack) -> None:
        self.compute = self._make(device, resources)
        self.to_device = self._make(device, resources) if transfers else None
        self.to_host = self._make(device, resources) if transfers else None

    @staticmethod
    def _make(device: Device, resources: ExitStack) -> Stream:
        stream = device.stream()
        resources.callback(stream.close)
        return stream


def fill(
    device: Device, bindings: tuple[Binding, ...], buffers: BufferSet, data: Inputs, stream: Stream
) -> None:
    """Put the input data into host and device memory, so that any contract starts from real data."""
    for binding in bindings:
        if binding.is_input:
            array = np.ascontiguousarray(data[binding.name], dtype=binding.dtype)
            host = buffers.host[binding.name]
            host.array[: array.nbytes] = array.reshape(-1).view(np.uint8)
            device.copy_to_device(buffers.device[binding.name], host, stream)
    stream.synchronize()


def _event_pair(device: Device, blocking: bool, resources: ExitStack) -> tuple[Event, Event]:
    start = device.event(blocking=blocking)
    resources.callback(start.close)
    end = device.event(blocking=blocking)
    resources.callback(end.close)
    return start, end


class Slot:
    """One query in flight at most: `start` hands it over, `finish` waits for it."""

    def __init__(
        self,
        device: Device,
        context: Context,
        streams: Streams,
        buffers: BufferSet,
        graph: Graph | None,
        contract: Contract,
        resources: ExitStack,
    ) -> None:
        self._device = device
        self._context = context
        self._streams = streams
        self._buffers = buffers
        self._graph = graph
        self._rebind = graph is None and contract.transfers and contract.queue_ahead > 0
        blocking = contract.sync == "blocking"
        self._compute = _event_pair(device, blocking, resources)
        self._h2d = _event_pair(device, blocking, resources) if contract.transfers else None
        self._d2h = _event_pair(device, blocking, resources) if contract.transfers else None
        self._inputs = [binding.name for binding in context.bindings if binding.is_input]
        self._outputs = [binding.name for binding in context.bindings if not binding.is_input]
        self._start_s = self._enqueue_ms = 0.0
        self.busy = False

    @property
    def completion(self) -> Event:
        """Reached when the query in flight has finished."""
        return (self._d2h if self._d2h is not None else self._compute)[1]

    def start(self) -> None:
        """Hand one query over. Nothing here waits for the device but copies into pageable memory."""
        device, streams, buffers = self._device, self._streams, self._buffers
        self._start_s = device.now()
        if self._h2d is not None and streams.to_device is not None:
            self._h2d[0].record(streams.to_device)
            for name in self._inputs:
                device.copy_to_device(buffers.device[name], buffers.host[name], streams.to_device)
            self._h2d[1].record(streams.to_device)
            streams.compute.wait_for(self._h2d[1])
        self._enqueue(streams.compute)
        if self._d2h is not None and streams.to_host is not None:
            streams.to_host.wait_for(self._compute[1])
            self._d2h[0].record(streams.to_host)
            for name in self._outputs:
                device.copy_to_host(buffers.host[name], buffers.device[name], streams.to_host)
            self._d2h[1].record(streams.to_host)
        self.busy = True

    def _enqueue(self, stream: Stream) -> None:
        if self._rebind:
            self._context.bind(self._buffers.device)
        self._compute[0].record(stream)
        before_s = self._device.now()
        if self._graph is not None:
            self._graph.launch(stream)
        else:
            self._context.enqueue(stream)
        self._enqueue_ms = (self._device.now() - before_s) * 1e3
        self._compute[1].record(stream)

    def finish(self) -> Query:
        """Wait for the query and read its times."""
        self.completion.wait()
        end_s = self._device.now()
        self.busy = False
        return Query(
            start_s=self._start_s,
            end_s=end_s,
            enqueue_ms=self._enqueue_ms,
            gpu_compute_ms=self._compute[1].elapsed_ms(self._compute[0]),
            h2d_ms=self._h2d[1].elapsed_ms(self._h2d[0]) if self._h2d is not None else None,
            d2h_ms=self._d2h[1].elapsed_ms(self._d2h[0]) if self._d2h is not None else None,
        )
