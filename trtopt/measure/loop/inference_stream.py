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

Between the two readings of the clock lie a query's own calls and nothing else: they are listed beforehand,
each with its arguments, once for every way in which a query can run. On a synchronous device that leaves the
copies and the library's call: no event is recorded or waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import (
    Context,
    Device,
    DeviceBuffer,
    Event,
    HostBuffer,
    Session,
    SizedOutput,
    Stream,
)
from trtopt.device.sized_outputs import SizedCopies, capture_inference
from trtopt.errors import GraphCaptureError
from trtopt.measure.loop.buffers import Bindings, Inputs, array_in, device_buffers, fill, fixed, host_buffers
from trtopt.records import Contract, Shape

MAX_SETS = 2


def sets_of(contract: Contract) -> int:
    """How many sets of device memory an inference stream has."""
    return min(contract.queue_ahead + 1, MAX_SETS) if contract.transfers else 1


Calls = tuple[Callable[[], object], ...]
"""One after the other."""


class Query(NamedTuple):
    """One finished query; host times in seconds on the device's clock, durations in milliseconds.

    All but the first two are None if they were not requested, or if the query has no such stage.
    """

    start_s: float
    end_s: float
    enqueue_ms: float | None = None
    gpu_compute_ms: float | None = None
    h2d_ms: float | None = None
    d2h_ms: float | None = None


class DeviceSet:
    """Device memory that one query at a time computes on, and the slot of the last one that did.

    `launch` enqueues one inference on it. `consumed` is recorded when that query's inputs have been read;
    None where no such event can be had.
    """

    launch: Callable[[], None]

    def __init__(self, buffers: Mapping[str, DeviceBuffer]) -> None:
        self.buffers = buffers
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
        turns = BufferRing(self._context, self._sets, rebind=len(self._sets) > 1 and not self._is_captured)
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
        compute, replays = self._streams.compute, list[Callable[[], None]]()
        for device_set in self._sets:
            self._context.bind(device_set.buffers)
            device_set.launch = self._context.launcher(compute)
            device_set.launch()
            compute.synchronize()
            if self.contract.graph and self.graph_refused is None:
                try:
                    replays.append(capture_inference(self._device, self._context, compute, self._resources))
                except GraphCaptureError as error:
                    self.graph_refused = error.problem
        self._is_captured = len(replays) == len(self._sets)
        if self._is_captured:
            for device_set, replay in zip(self._sets, replays, strict=True):
                device_set.launch = replay
        if self.contract.transfers and self.contract.queue_ahead + 1 > len(self._sets):
            self._follow_reading()

    def _follow_reading(self) -> None:
        """Set the input-consumed events: more queries are in flight than there are sets."""
        if self._device.is_synchronous:
            return
        if self._is_captured:
            self.refills_late = "nothing can wait for an event within a CUDA graph"
            return
        for device_set in self._sets:
            event = self._device.event(timed=False)
            self._resources.callback(event.close)
            if event.handle is None:
                self.refills_late = "the CUDA binding does not give the handles of events"
                return
            device_set.consumed = event

    @property
    def bindings(self) -> Bindings:
        """The context's inputs and outputs."""
        return self._context.bindings

    def bare(self) -> tuple[Calls, Callable[[], object]]:
        """The calls that launch one query on the first set, and what waits for it.

        Without stages and events, all on one stream; only a host that sleeps waits for an event.
        """
        stream, first, host = self._streams.compute, self._sets[0], self._hosts[0]
        self._context.bind(first.buffers)
        wait: Callable[[], object] = stream.synchronize
        calls: list[Callable[[], object]] = [first.launch]
        if self.contract.transfers:
            copies = fixed(self.bindings)
            to_device, to_host = self._device.copy_to_device, self._device.copy_to_host
            calls = [
                *(
                    partial(to_device, first.buffers[i.name], host[i.name], stream)
                    for i in copies
                    if i.is_input
                ),
                first.launch,
                *(
                    partial(to_host, host[o.name], first.buffers[o.name], stream)
                    for o in copies
                    if not o.is_input
                ),
            ]
        if self.contract.sync == "blocking":
            wait = self.slots[0].plain_end.wait
            calls.append(partial(self.slots[0].plain_end.record, stream))
        return tuple(calls), wait

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
    """Hands a context's device sets to its queries, one after the other.

    `rebind`: the context is to use the set; a graph keeps the one that it was captured with.
    """

    def __init__(self, context: Context, sets: list[DeviceSet], *, rebind: bool) -> None:
        self.bindings = context.bindings
        self.context = context
        self._rebind = rebind
        self._next = cycle(sets).__next__

    def take(self, slot: InFlightQuery) -> tuple[DeviceSet, InFlightQuery | None]:
        """The next set, and the slot whose query still uses it."""
        device_set = self._next()
        before, device_set.last = device_set.last, slot
        in_use = before is not None and before.busy and before.device_set is device_set
        if self._rebind:
            self.context.bind(device_set.buffers, device_set.consumed)
        return device_set, before if in_use else None


class Stage:
    """One stage of a query, on one stream; how long it takes is only known of a timed one.

    What `begin`, `finish` and `hold` list is to be called in the query. On a synchronous device only a timed
    stage has events to record.
    """

    def __init__(self, device: Device, *, timed: bool, blocking: bool, resources: ExitStack) -> None:
        self.end = device.event(blocking=blocking, timed=timed)
        resources.callback(self.end.close)
        self._is_marked = timed or not device.is_synchronous
        self._start = device.event(blocking=blocking) if timed else None
        if self._start is not None:
            resources.callback(self._start.close)

    def begin(self, stream: Stream) -> Calls:
        """Mark its beginning on the stream."""
        return () if self._start is None else (partial(self._start.record, stream),)

    def finish(self, stream: Stream) -> Calls:
        """Mark its end."""
        return (partial(self.end.record, stream),) if self._is_marked else ()

    def hold(self, stream: Stream) -> Calls:
        """Let another stream wait for its end."""
        return (partial(stream.wait_for, self.end),) if self._is_marked else ()

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
    def last(self) -> Stage:
        """The one with which the query has ended."""
        return self.d2h or self.compute


class InFlightQuery:
    """One query in flight at most: `start` hands it over, `finish` waits for it; `run` does both.

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
        self._now = device.now
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
        self._calls: dict[tuple[DeviceSet, Stages | None, Stages, bool], Calls] = {}
        self._start_s = self._enqueue_ms = 0.0
        self.device_set: DeviceSet | None = None  # of the query in flight
        self.busy = False

    def start(self, *, timed: bool = False) -> None:
        """Hand one query over. Nothing here waits for the device but copies into pageable memory."""
        calls = self._prepared(timed=timed, waits=False)
        self.busy = True
        self._start_s = self._now()
        for call in calls:
            call()

    def finish(self) -> Query:
        """Wait for the query and read its times."""
        self.completion.wait()
        end_s = self._now()
        self.busy = False
        return self._query(self._start_s, end_s)

    def run(self, *, timed: bool = False) -> Query:
        """`start` and `finish`, with nothing in between."""
        calls, now = self._prepared(timed=timed, waits=True), self._now
        start_s = now()
        for call in calls:
            call()
        end_s = now()
        return self._query(start_s, end_s)

    def _query(self, start_s: float, end_s: float) -> Query:
        stages = self._stages
        if stages is self._plain:
            return Query(start_s, end_s)
        return Query(
            start_s,
            end_s,
            enqueue_ms=self._enqueue_ms,
            gpu_compute_ms=stages.compute.ms,
            h2d_ms=stages.h2d.ms if stages.h2d is not None else None,
            d2h_ms=stages.d2h.ms if stages.d2h is not None else None,
        )

    def _prepared(self, *, timed: bool, waits: bool) -> Calls:
        """Take the next set, and list the calls that hand a query on it over, or also wait for it."""
        device_set, before = self._turns.take(self)
        self.device_set = device_set
        self._stages = stages = self._timed if timed else self._plain
        way = device_set, before._stages if before is not None else None, stages, waits
        calls = self._calls.get(way)
        if calls is None:
            calls = self._calls[way] = tuple(self._listed(*way))
        return calls

    def _listed(
        self, device_set: DeviceSet, before: Stages | None, stages: Stages, waits: bool
    ) -> Iterator[Callable[[], object]]:
        """`before` are those of the query that still uses the set."""
        compute, launch = self._streams.compute, device_set.launch
        if stages.h2d is not None:
            yield from self._copies_in(device_set, before, stages.h2d)
        yield from stages.compute.begin(compute)
        yield launch if stages is self._plain else partial(self._enqueue_timed, launch)
        yield from stages.compute.finish(compute)
        if stages.d2h is not None:
            yield from self._copies_out(device_set, stages.compute, stages.d2h)
        if waits and not self._device.is_synchronous:
            yield stages.last.end.wait

    def _copies_in(
        self, device_set: DeviceSet, before: Stages | None, h2d: Stage
    ) -> Iterator[Callable[[], object]]:
        device, stream, compute = self._device, self._streams.to_device, self._streams.compute
        assert stream is not None
        if before is not None:
            if device_set.consumed is None:
                yield from before.compute.hold(stream)
            else:
                yield partial(stream.wait_for, device_set.consumed)
        yield from h2d.begin(stream)
        for name in self._inputs:
            yield partial(device.copy_to_device, device_set.buffers[name], self._host[name], stream)
        yield from h2d.finish(stream)
        yield from h2d.hold(compute)
        if before is not None:
            yield from before.last.hold(compute)

    def _copies_out(
        self, device_set: DeviceSet, computed: Stage, d2h: Stage
    ) -> Iterator[Callable[[], object]]:
        device, stream = self._device, self._streams.to_host
        assert stream is not None
        yield from computed.hold(stream)
        yield from d2h.begin(stream)
        for name in self._outputs:
            yield partial(device.copy_to_host, self._host[name], device_set.buffers[name], stream)
        if len(self._outputs) + len(self._inputs) < len(self._turns.bindings):
            yield partial(self.sized.enqueue, stream)
        yield from d2h.finish(stream)

    def _enqueue_timed(self, launch: Callable[[], None]) -> None:
        before_s = self._now()
        launch()
        self._enqueue_ms = (self._now() - before_s) * 1e3

    @property
    def plain_end(self) -> Event:
        """The one behind a query's computing whose stages are not timed."""
        return self._plain.compute.end

    @property
    def completion(self) -> Event:
        """Reached when the query in flight has finished."""
        return self._stages.last.end
