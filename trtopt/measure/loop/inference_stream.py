"""One inference stream: a context, its buffers, streams and events.

An inference stream has `queue_ahead + 1` in-flight queries, each with events and, if there are transfers,
host memory of its own. Of device memory two sets are enough with transfers: one query is copied while another
one computes, and queries alternate between them. Whatever overwrites a set waits for the previous query on
it, on the device and not on the host:

- an input is refilled as soon as its input-consumed event has been recorded (see `Context.bind`). Under a
  CUDA graph that event cannot be used: recorded while a graph is captured, it is an edge within the graph,
  which nothing outside can wait for. There, and where the binding gives no handle of an event, an input is
  refilled once computing has ended.
- an output is written again once it has been copied to the host.

Without transfers nothing is overwritten, and all in-flight queries share one set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import (
    Context,
    Device,
    DeviceBuffer,
    Event,
    Graph,
    HostBuffer,
    Session,
    SizedOutput,
    Stream,
)
from trtopt.device.sized_outputs import SizedCopies, require_fixed_sizes
from trtopt.errors import GraphCaptureError
from trtopt.measure.loop.buffers import Bindings, Inputs, array_in, device_buffers, fill, fixed, host_buffers
from trtopt.records import Contract, Shape

MAX_SETS = 2


def sets_of(contract: Contract) -> int:
    """How many sets of device memory an inference stream has."""
    return min(contract.queue_ahead + 1, MAX_SETS) if contract.transfers else 1


@dataclass(frozen=True)
class Query:
    """One finished query; host times in seconds on the device's clock, durations in milliseconds.

    The device's durations are None if they were not requested, or if the query has no such stage.
    """

    start_s: float
    end_s: float
    enqueue_ms: float
    gpu_compute_ms: float | None
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
        self.last: InFlightQuery | None = None


class InferenceStream:
    """Runs queries on one context; `close` releases everything, in reverse order of creation.

    `graph_refused`: why there is no CUDA graph although the contract requests one. `refills_late`: why inputs
    are refilled only once computing has ended.
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
            DeviceSet(device_buffers(device, self.bindings, resources)) for _ in range(self._set_count())
        ]
        for device_set in self._sets:
            fill(device, self.bindings, device_set.buffers, self._hosts[0], self._streams.compute)
        self._prepare()
        turns = BufferRing(self._context, self._sets)
        self.slots = [
            InFlightQuery(
                device, turns, self._streams, self._hosts[index % len(self._hosts)], contract, resources
            )
            for index in range(slots)
        ]

    def _set_count(self) -> int:
        """A context has one place for outputs of data-dependent size: queries take turns on one set."""
        return sets_of(self.contract) if fixed(self.bindings) == self.bindings else 1

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
        """Set the input-consumed events: more queries are in flight than there are sets."""
        if self._sets[0].graph is not None:
            self.refills_late = "nothing can wait for an event within a CUDA graph"
            return
        for device_set in self._sets:
            event = self._device.event(timed=False)
            self._resources.callback(event.close)
            if event.handle is None:
                self.refills_late = "the CUDA binding does not give the handles of events"
                return
            device_set.consumed = event

    def _capture(self) -> Graph | None:
        stream = self._streams.compute
        try:
            require_fixed_sizes(self._context)
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
        outputs = [binding for binding in fixed(self.bindings) if not binding.is_input]
        if not self.contract.transfers:
            stream = self._streams.compute
            for binding in outputs:
                source = self._sets[0].buffers[binding.name]
                self._device.copy_to_host(self._hosts[0][binding.name], source, stream)
            self.slots[0].sized.enqueue(stream)
            stream.synchronize()
        return [
            {binding.name: array_in(host[binding.name], binding) for binding in outputs} | slot.sized.arrays()
            for host, slot in zip(self._hosts, self.slots, strict=False)
        ]

    @property
    def sized_outputs(self) -> Mapping[str, SizedOutput]:
        """What the last query left of outputs whose size depends on data."""
        return self._context.sized_outputs()

    @property
    def output_growths(self) -> int:
        """How often the memory of such outputs had to grow."""
        return self._context.output_growths

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


class BufferRing:
    """Hands a context's device sets to its queries, one after the other."""

    def __init__(self, context: Context, sets: list[DeviceSet]) -> None:
        self.bindings = context.bindings
        self.context = context
        self._rebind = len(sets) > 1 and sets[0].graph is None
        self._next = cycle(sets).__next__

    def take(self, slot: InFlightQuery) -> tuple[DeviceSet, InFlightQuery | None]:
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
            self.context.enqueue(stream)

    def bind(self, device_set: DeviceSet) -> None:
        """Let the next plain enqueue use the set; a graph keeps the set that it was captured with."""
        if self._rebind:
            self.context.bind(device_set.buffers, device_set.consumed)


class Stage:
    """One stage of a query, on one stream; how long it takes is only known of a timed one."""

    def __init__(self, device: Device, *, timed: bool, blocking: bool, resources: ExitStack) -> None:
        self.end = device.event(blocking=blocking, timed=timed)
        resources.callback(self.end.close)
        self._start = device.event(blocking=blocking) if timed else None
        if self._start is not None:
            resources.callback(self._start.close)

    def begin(self, stream: Stream) -> None:
        """Enqueue its beginning."""
        if self._start is not None:
            self._start.record(stream)

    @property
    def ms(self) -> float | None:
        """How long it took the device."""
        return None if self._start is None else self.end.elapsed_ms(self._start)


class Stages:
    """A query's stages, the copies only where the contract has any."""

    def __init__(self, device: Device, contract: Contract, resources: ExitStack, *, timed: bool) -> None:
        stage = partial(Stage, device, timed=timed, blocking=contract.sync == "blocking", resources=resources)
        self.h2d = stage() if contract.transfers else None
        self.compute = stage()
        self.d2h = stage() if contract.transfers else None

    @property
    def completion(self) -> Event:
        """Reached when the last one has ended."""
        return (self.d2h or self.compute).end


class InFlightQuery:
    """One query in flight at most: `start` hands it over, `finish` waits for it.

    Its stages are timed only on demand: an event that notes the time keeps the GPU for a few microseconds.
    """

    def __init__(
        self,
        device: Device,
        turns: BufferRing,
        streams: Streams,
        host: Mapping[str, HostBuffer],
        contract: Contract,
        resources: ExitStack,
    ) -> None:
        self._device = device
        self._turns = turns
        self._streams = streams
        self._host = host
        self._plain = Stages(device, contract, resources, timed=False)
        self._timed = Stages(device, contract, resources, timed=True)
        self._stages = self._plain  # of the query in flight
        self._inputs = [binding.name for binding in turns.bindings if binding.is_input]
        self._outputs = [binding.name for binding in fixed(turns.bindings) if not binding.is_input]
        self.sized = SizedCopies(device, turns.context)
        resources.callback(self.sized.close)
        self._start_s = self._enqueue_ms = 0.0
        self.device_set: DeviceSet | None = None  # of the query in flight
        self.busy = False

    def start(self, *, timed: bool = False) -> None:
        """Hand one query over. Nothing here waits for the device but copies into pageable memory."""
        device_set, before = self._turns.take(self)
        self.device_set = device_set
        self._stages = stages = self._timed if timed else self._plain
        self._start_s = self._device.now()
        if stages.h2d is not None:
            self._copy_inputs(device_set, before, stages.h2d)
        self._enqueue(device_set, stages.compute)
        if stages.d2h is not None:
            self._copy_outputs(device_set, stages.d2h)
        self.busy = True

    def _copy_inputs(self, device_set: DeviceSet, before: InFlightQuery | None, h2d: Stage) -> None:
        device, stream, compute = self._device, self._streams.to_device, self._streams.compute
        assert stream is not None
        if before is not None:
            stream.wait_for(device_set.consumed or before.computed)
        h2d.begin(stream)
        for name in self._inputs:
            device.copy_to_device(device_set.buffers[name], self._host[name], stream)
        h2d.end.record(stream)
        compute.wait_for(h2d.end)
        if before is not None:
            compute.wait_for(before.completion)

    def _enqueue(self, device_set: DeviceSet, compute: Stage) -> None:
        stream = self._streams.compute
        self._turns.bind(device_set)
        compute.begin(stream)
        before_s = self._device.now()
        self._turns.enqueue(device_set, stream)
        self._enqueue_ms = (self._device.now() - before_s) * 1e3
        compute.end.record(stream)

    def _copy_outputs(self, device_set: DeviceSet, d2h: Stage) -> None:
        device, stream = self._device, self._streams.to_host
        assert stream is not None
        stream.wait_for(self.computed)
        d2h.begin(stream)
        for name in self._outputs:
            device.copy_to_host(self._host[name], device_set.buffers[name], stream)
        self.sized.enqueue(stream)
        d2h.end.record(stream)

    @property
    def computed(self) -> Event:
        """Reached when the query in flight has been computed."""
        return self._stages.compute.end

    @property
    def completion(self) -> Event:
        """Reached when the query in flight has finished."""
        return self._stages.completion

    def finish(self) -> Query:
        """Wait for the query and read its times."""
        self.completion.wait()
        end_s = self._device.now()
        self.busy = False
        stages = self._stages
        return Query(
            start_s=self._start_s,
            end_s=end_s,
            enqueue_ms=self._enqueue_ms,
            gpu_compute_ms=stages.compute.ms,
            h2d_ms=stages.h2d.ms if stages.h2d is not None else None,
            d2h_ms=stages.d2h.ms if stages.d2h is not None else None,
        )
