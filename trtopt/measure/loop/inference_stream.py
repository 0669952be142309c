"""One inference stream: a context, its memory, streams and events.

An inference stream has `queue_ahead + 1` in-flight queries, each with events and, if there are transfers,
memory of its own on the host and on the device: none waits for the memory of another. Without transfers
nothing is overwritten, and all share one set.

Between the two readings of the clock lie a query's own calls and nothing else: they are listed beforehand,
each with its arguments, once for every way in which a query can run. On a synchronous device that leaves the
copies and the library's call: no event is recorded or waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtopt.data.fit import convert_input
from trtopt.data.packing import unvectorise, vectorise
from trtopt.device.api import (
    Binding,
    Context,
    Device,
    DeviceBuffer,
    Event,
    HostBuffer,
    Inputs as Inputs,
    Session,
    SizedOutput,
    Stream,
)
from trtopt.device.sized_outputs import SizedCopies, capture_inference
from trtopt.errors import GraphCaptureError
from trtopt.records import Contract, Shape
from trtopt.records.tensors import VECTORS

# ── memory for a context's inputs and outputs, on the device and on the host ──────────────────────────


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
    session: Session, shapes: Mapping[str, Shape], data: Inputs, resources: ExitStack
) -> tuple[Context, Stream]:
    """A context with buffers of the data, and a stream; `resources` closes them."""
    device = session.device
    context = resources.enter_context(closing(session.context(shapes)))
    stream = resources.enter_context(closing(device.stream()))
    buffers = device_buffers(device, context.bindings, resources)
    host = host_buffers(device, context.bindings, data, resources)
    fill(device, context.bindings, buffers, host, stream)
    context.bind(buffers)
    return context, stream


def array_in(buffer: HostBuffer, binding: Binding) -> NDArray[np.generic]:
    """A copy of the input or output that a buffer holds, in its linear shape."""
    stored = binding.view(buffer).copy()
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


# ── the stream ────────────────────────────────────────────────────────────────────────────────────────


def sets_of(contract: Contract) -> int:
    """How many sets of device memory an inference stream has."""
    return contract.queue_ahead + 1 if contract.transfers else 1


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


class InferenceStream:
    """Runs queries on one context; `close` releases everything, in reverse order of creation.

    `graph_refused`: why there is no CUDA graph although the contract requests one.
    """

    def __init__(
        self, session: Session, shapes: Mapping[str, Shape], data: Inputs, contract: Contract
    ) -> None:
        self._resources = ExitStack()
        self.device, self.contract = session.device, contract
        self.graph_refused: str | None = None
        try:
            self._open(session, shapes, data)
        except BaseException:
            self.close()
            raise

    def _open(self, session: Session, shapes: Mapping[str, Shape], data: Inputs) -> None:
        device, contract, resources = self.device, self.contract, self._resources
        self._context = session.context(shapes)
        resources.callback(self._context.close)
        # a context has one place for outputs of data-dependent size: its queries run one after the other
        is_shared = of_fixed_size(self.bindings) != self.bindings
        self._streams = Streams(device, resources, copies_apart=contract.transfers and not is_shared)
        slots = contract.queue_ahead + 1
        self._hosts = [
            host_buffers(device, self.bindings, data, resources, pinned=contract.pinned)
            for _ in range(slots if contract.transfers else 1)
        ]
        self._memory = [
            device_buffers(device, self.bindings, resources)
            for _ in range(1 if is_shared else sets_of(contract))
        ]
        for buffers in self._memory:
            fill(device, self.bindings, buffers, self._hosts[0], self._streams.compute)
        launches, is_captured = self._launches()
        self.slots = [
            InFlightQuery(
                device,
                self._context,
                self._memory[index % len(launches)],
                launches[index % len(launches)],
                self._streams,
                self._hosts[index % len(self._hosts)],
                contract,
                resources,
                rebinds=len(launches) > 1 and not is_captured,
            )
            for index in range(slots)
        ]

    def _launches(self) -> tuple[list[Callable[[], None]], bool]:
        """What enqueues one inference on each set of memory, and whether these are graphs.

        Each runs once before (the first enqueue after a shape change is slow), and is captured then.
        """
        compute = self._streams.compute
        plain, replays = list[Callable[[], None]](), list[Callable[[], None]]()
        for buffers in self._memory:
            self._context.bind(buffers)
            plain.append(self._context.launcher(compute))
            plain[-1]()
            compute.synchronize()
            if self.contract.graph and self.graph_refused is None:
                try:
                    replays.append(capture_inference(self.device, self._context, compute, self._resources))
                except GraphCaptureError as error:
                    self.graph_refused = error.problem
        is_captured = len(replays) == len(plain)
        return replays if is_captured else plain, is_captured

    @property
    def bindings(self) -> Bindings:
        """The context's inputs and outputs."""
        return self._context.bindings

    def bare(self) -> tuple[Calls, Callable[[], object]]:
        """The calls that launch one query on the first set, and what waits for it.

        Without stages and events, all on one stream; only a host that sleeps waits for an event.
        """
        stream, query = self._streams.compute, self.slots[0]
        self._context.bind(self._memory[0])
        calls: Calls = (query.launch,)
        if self.contract.transfers:
            calls = (*query.copies_in(stream), *calls, *query.copies_out(stream))
        if self.contract.sync == "blocking":
            return (*calls, partial(query.plain_end.record, stream)), query.plain_end.wait
        return calls, stream.synchronize

    def outputs(self) -> list[dict[str, NDArray[np.generic]]]:
        """What the last queries computed, as each slot received it; without transfers, what the device holds.

        Call it when every slot has run a query and none is in flight.
        """
        outputs = [binding for binding in of_fixed_size(self.bindings) if not binding.is_input]
        if not self.contract.transfers:
            stream = self._streams.compute
            for binding in outputs:
                source = self._memory[0][binding.name]
                self.device.copy_to_host(self._hosts[0][binding.name], source, stream)
            self.slots[0].sized.enqueue(stream)
            stream.synchronize()
        return [
            {binding.name: array_in(host[binding.name], binding) for binding in outputs} | slot.sized.arrays()
            for host, slot in zip(self._hosts, self.slots, strict=False)
        ]

    def outputs_for(self, data: Inputs) -> dict[str, NDArray[np.generic]]:
        """What one query computes from other data of the same shapes; only with transfers."""
        put(self.bindings, data, self._hosts[0])
        self.slots[0].run()
        return self.outputs()[0]

    @property
    def sized_outputs(self) -> Mapping[str, SizedOutput]:
        """What the last query left of outputs whose size depends on data."""
        return self._context.sized_outputs()

    def close(self) -> None:
        """Give everything back."""
        self._resources.close()


class Streams:
    """One for computing; with `copies_apart` one for each direction as well, else copies are on it too."""

    def __init__(self, device: Device, resources: ExitStack, *, copies_apart: bool) -> None:
        count = 3 if copies_apart else 1
        made = [resources.enter_context(closing(device.stream())) for _ in range(count)]
        self.compute, self.to_device, self.to_host = made if copies_apart else made * 3


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
    With `rebinds` the context is first given this query's memory; a graph keeps what it was captured with.
    """

    def __init__(
        self,
        device: Device,
        context: Context,
        memory: Mapping[str, DeviceBuffer],
        launch: Callable[[], None],
        streams: Streams,
        host: Mapping[str, HostBuffer],
        contract: Contract,
        resources: ExitStack,
        *,
        rebinds: bool,
    ) -> None:
        self._device = device
        self._now = device.now
        self._context, self._memory, self.launch, self._rebinds = context, memory, launch, rebinds
        self._streams, self._host = streams, host
        self._stages = {timed: Stages(device, contract, resources, timed=timed) for timed in (False, True)}
        self._inputs = [binding.name for binding in context.bindings if binding.is_input]
        self._outputs = [binding.name for binding in of_fixed_size(context.bindings) if not binding.is_input]
        self.sized = SizedCopies(device, context)
        resources.callback(self.sized.close)
        self._calls = {
            (timed, waits): tuple(self._list_calls(stages, timed=timed, waits=waits))
            for timed, stages in self._stages.items()
            for waits in (False, True)
        }
        self._is_timed = False  # the query in flight
        self._start_s = self._enqueue_ms = 0.0
        self.busy = False

    def start(self, *, timed: bool = False) -> None:
        """Hand one query over. Nothing here waits for the device but copies into pageable memory."""
        calls = self._prepare(timed=timed, waits=False)
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
        calls, now = self._prepare(timed=timed, waits=True), self._now
        start_s = now()
        for call in calls:
            call()
        end_s = now()
        return self._query(start_s, end_s)

    def _query(self, start_s: float, end_s: float) -> Query:
        if not self._is_timed:
            return Query(start_s, end_s)
        stages = self._stages[True]
        return Query(
            start_s,
            end_s,
            enqueue_ms=self._enqueue_ms,
            gpu_compute_ms=stages.compute.ms,
            h2d_ms=stages.h2d.ms if stages.h2d is not None else None,
            d2h_ms=stages.d2h.ms if stages.d2h is not None else None,
        )

    def _prepare(self, *, timed: bool, waits: bool) -> Calls:
        """The calls that hand a query over, or also wait for it."""
        self._is_timed = timed
        if self._rebinds:
            self._context.bind(self._memory)
        return self._calls[timed, waits]

    def _list_calls(self, stages: Stages, *, timed: bool, waits: bool) -> Iterator[Callable[[], object]]:
        compute, to_device, to_host = self._streams.compute, self._streams.to_device, self._streams.to_host
        if stages.h2d is not None:
            yield from stages.h2d.begin(to_device)
            yield from self.copies_in(to_device)
            yield from stages.h2d.finish(to_device)
            yield from stages.h2d.hold(compute)
        yield from stages.compute.begin(compute)
        yield partial(self._enqueue_timed, self.launch) if timed else self.launch
        yield from stages.compute.finish(compute)
        if stages.d2h is not None:
            yield from stages.compute.hold(to_host)
            yield from stages.d2h.begin(to_host)
            yield from self.copies_out(to_host)
            yield from stages.d2h.finish(to_host)
        if waits and not self._device.is_synchronous:
            yield stages.last.end.wait

    def copies_in(self, stream: Stream) -> Iterator[Callable[[], object]]:
        """What copies its inputs to the device."""
        for name in self._inputs:
            yield partial(self._device.copy_to_device, self._memory[name], self._host[name], stream)

    def copies_out(self, stream: Stream) -> Iterator[Callable[[], object]]:
        """What copies its outputs to the host."""
        for name in self._outputs:
            yield partial(self._device.copy_to_host, self._host[name], self._memory[name], stream)
        if len(self._outputs) + len(self._inputs) < len(self._context.bindings):
            yield partial(self.sized.enqueue, stream)

    def _enqueue_timed(self, launch: Callable[[], None]) -> None:
        before_s = self._now()
        launch()
        self._enqueue_ms = (self._now() - before_s) * 1e3

    @property
    def plain_end(self) -> Event:
        """The one behind a query's computing whose stages are not timed."""
        return self._stages[False].compute.end

    @property
    def completion(self) -> Event:
        """Reached when the query in flight has finished."""
        return self._stages[self._is_timed].last.end
