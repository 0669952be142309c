"""One inference stream: a context, its buffers, streams and events.

A lane has `queue_ahead + 1` slots, one for each query in flight, with events and, if there are transfers,
host memory of its own. Device memory is another matter: with transfers two sets of it are enough for one
query to be copied while another one computes, and queries take turns with them. What may overwrite a set
waits for the query before on it, on the device and not on the host:

- an input is refilled as soon as it has been read, which an event of its own tells (see `Context.bind`).
  Under a CUDA graph that event cannot be used: recorded while a graph is captured, it is an edge within the
  graph, which nothing outside can wait for. There, and where the binding tells no handle of an event, an
  input is refilled once computing has ended.
- an output is written again once it has been copied to the host.

Without transfers nothing is overwritten, and all slots share one set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import Context, Device, DeviceBuffer, Event, Graph, HostBuffer, Session, Stream
from trtopt.errors import GraphCaptureError
from trtopt.measure.buffers import Bindings, Inputs, array_in, device_buffers, fill, host_buffers
from trtopt.records import Contract, Shape

MAX_SETS = 2


@dataclass(frozen=True)
class Query:
    """One finished query; host times in seconds on the device's clock, durations in milliseconds."""

    start_s: float
    end_s: float
    enqueue_ms: float
    gpu_compute_ms: float
    h2d_ms: float | None
    d2h_ms: float | None


class DeviceSet:
    """Device memory that one query at a time computes on, and the slot of the last one that did.

    `consumed` is recorded when that query's inputs have been read; None where no such event can be had.
    """

    def __init__(self, buffers: Mapping[str, DeviceBuffer]) -> None:
        self.buffers = buffers
        self.graph: Graph | None = None
        self.consumed: Event | None = None
        self.last: Slot | None = None


class Lane:
    """Runs queries on one context; `close` gives everything back, in reverse order of making.

    `graph_refused` says why there is no CUDA graph although the contract asks for one, `refills_late` why
    inputs are refilled only once computing has ended.
    """

    def __init__(
        self, device: Device, session: Session, shapes: Mapping[str, Shape], data: Inputs, contract: Contract
    ) -> None:
        self._resources = ExitStack()
        self._device = device
        self.contract = contract
        self.graph_refused: str | None = None
        self.refills_late: str | None = None
        try:
            self._open(session, shapes, data)
        except BaseException:
            self.close()
            raise

    def _open(self, session: Session, shapes: Mapping[str, Shape], data: Inputs) -> None:
        device, contract, resources = self._device, self.contract, self._resources
        self._context = session.context(shapes)
        resources.callback(self._context.close)
        self._streams = Streams(device, contract.transfers, resources)
        slots = contract.queue_ahead + 1
        self._hosts = [
            host_buffers(device, self.bindings, data, resources, pinned=contract.pinned)
            for _ in range(slots if contract.transfers else 1)
        ]
        self._sets = [
            DeviceSet(device_buffers(device, self.bindings, resources))
            for _ in range(min(slots, MAX_SETS) if contract.transfers else 1)
        ]
        for device_set in self._sets:
            fill(device, self.bindings, device_set.buffers, self._hosts[0], self._streams.compute)
        self._prepare()
        turns = Turns(self._context, self._sets)
        self.slots = [
            Slot(device, turns, self._streams, self._hosts[index % len(self._hosts)], contract, resources)
            for index in range(slots)
        ]

    def _prepare(self) -> None:
        """Run on each set once (the first enqueue after a shape change is slow), then capture it."""
        for device_set in self._sets:
            self._context.bind(device_set.buffers)
            self._context.enqueue(self._streams.compute)
            self._streams.compute.synchronize()
            if self.contract.graph and self.graph_refused is None:
                device_set.graph = self._capture()
        if self.graph_refused is not None:
            for device_set in self._sets:
                device_set.graph = None
        if self.contract.transfers and self.contract.queue_ahead + 1 > len(self._sets):
            self._follow_reading()

    def _follow_reading(self) -> None:
        """Have it told when inputs have been read: more queries are in flight than there are sets."""
        if self._sets[0].graph is not None:
            self.refills_late = "nothing can wait for an event within a CUDA graph"
            return
        for device_set in self._sets:
            event = self._device.event()
            self._resources.callback(event.close)
            if event.handle is None:
                self.refills_late = "the CUDA binding does not tell the handles of events"
                return
            device_set.consumed = event

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
    def bindings(self) -> Bindings:
        """The context's inputs and outputs."""
        return self._context.bindings

    def bare(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """What launches one query of the first slot, without copies and events, and what waits for it."""
        stream, graph = self._streams.compute, self._sets[0].graph
        self._context.bind(self._sets[0].buffers)
        launch = self._context.enqueue if graph is None else graph.launch
        return partial(launch, stream), stream.synchronize

    def outputs(self) -> list[dict[str, NDArray[np.generic]]]:
        """What the last queries computed, as each slot received it; without transfers, what the device holds.

        Call it when every slot has run a query and none is in flight.
        """
        outputs = [binding for binding in self.bindings if not binding.is_input]
        if not self.contract.transfers:
            stream = self._streams.compute
            for binding in outputs:
                source = self._sets[0].buffers[binding.name]
                self._device.copy_to_host(self._hosts[0][binding.name], source, stream)
            stream.synchronize()
        return [
            {binding.name: array_in(host[binding.name], binding) for binding in outputs}
            for host in self._hosts
        ]

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


class Turns:
    """Hands a context's device sets to its queries, one after the other."""

    def __init__(self, context: Context, sets: list[DeviceSet]) -> None:
        self.bindings = context.bindings
        self._context = context
        self._rebind = len(sets) > 1 and sets[0].graph is None
        self._next = cycle(sets).__next__

    def take(self, slot: Slot) -> tuple[DeviceSet, Slot | None]:
        """The next set, and the slot whose query still uses it."""
        device_set = self._next()
        before, device_set.last = device_set.last, slot
        in_use = before is not None and before.busy and before.device_set is device_set
        return device_set, before if in_use else None

    def enqueue(self, device_set: DeviceSet, stream: Stream) -> None:
        """Enqueue one inference on the set."""
        if device_set.graph is not None:
            device_set.graph.launch(stream)
        else:
            self._context.enqueue(stream)

    def bind(self, device_set: DeviceSet) -> None:
        """Let the next plain enqueue use the set; a graph keeps the set that it was captured with."""
        if self._rebind:
            self._context.bind(device_set.buffers, device_set.consumed)


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
        turns: Turns,
        streams: Streams,
        host: Mapping[str, HostBuffer],
        contract: Contract,
        resources: ExitStack,
    ) -> None:
        self._device = device
        self._turns = turns
        self._streams = streams
        self._host = host
        blocking = contract.sync == "blocking"
        self._compute = _event_pair(device, blocking, resources)
        self._h2d = _event_pair(device, blocking, resources) if contract.transfers else None
        self._d2h = _event_pair(device, blocking, resources) if contract.transfers else None
        self._inputs = [binding.name for binding in turns.bindings if binding.is_input]
        self._outputs = [binding.name for binding in turns.bindings if not binding.is_input]
        self._start_s = self._enqueue_ms = 0.0
        self.device_set: DeviceSet | None = None  # of the query in flight
        self.busy = False

    def start(self) -> None:
        """Hand one query over. Nothing here waits for the device but copies into pageable memory."""
        self._start_s = self._device.now()
        device_set, before = self._turns.take(self)
        self.device_set = device_set
        if self._h2d is not None:
            self._copy_inputs(device_set, before, self._h2d)
        self._enqueue(device_set)
        if self._d2h is not None:
            self._copy_outputs(device_set, self._d2h)
        self.busy = True

    def _copy_inputs(self, device_set: DeviceSet, before: Slot | None, h2d: tuple[Event, Event]) -> None:
        device, stream, compute = self._device, self._streams.to_device, self._streams.compute
        assert stream is not None
        if before is not None:
            stream.wait_for(device_set.consumed or before.computed)
        h2d[0].record(stream)
        for name in self._inputs:
            device.copy_to_device(device_set.buffers[name], self._host[name], stream)
        h2d[1].record(stream)
        compute.wait_for(h2d[1])
        if before is not None:
            compute.wait_for(before.completion)

    def _enqueue(self, device_set: DeviceSet) -> None:
        stream = self._streams.compute
        self._turns.bind(device_set)
        self._compute[0].record(stream)
        before_s = self._device.now()
        self._turns.enqueue(device_set, stream)
        self._enqueue_ms = (self._device.now() - before_s) * 1e3
        self._compute[1].record(stream)

    def _copy_outputs(self, device_set: DeviceSet, d2h: tuple[Event, Event]) -> None:
        device, stream = self._device, self._streams.to_host
        assert stream is not None
        stream.wait_for(self._compute[1])
        d2h[0].record(stream)
        for name in self._outputs:
            device.copy_to_host(self._host[name], device_set.buffers[name], stream)
        d2h[1].record(stream)

    @property
    def computed(self) -> Event:
        """Reached when the query in flight has been computed."""
        return self._compute[1]

    @property
    def completion(self) -> Event:
        """Reached when the query in flight has finished."""
        return (self._d2h if self._d2h is not None else self._compute)[1]

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
