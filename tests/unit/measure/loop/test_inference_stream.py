"""What a lane hands to the device: graphs, buffers, waits."""

import gc
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.rewrite_graphs import model
from tests.support.scripted_device.device import (
    Script,
    ScriptedContext,
    ScriptedDevice,
    ScriptedEvent,
    ScriptedGraph,
    ScriptedSession,
)
from tests.support.scripted_runs import (
    DATA,
    INPUT_BYTES,
    INPUTS,
    OUTPUT_BYTES,
    SCRIPT,
    SHAPES,
    counted,
    run,
    subject_of,
    terms,
)
from trtopt.device.api import DeviceBuffer, Event, HostBuffer, Stream
from trtopt.device.ort.host import HostEvent, HostStream
from trtopt.device.ort.runtime import OnnxRuntimeTarget
from trtopt.errors import GraphCaptureError
from trtopt.measure.contracts import CONTRACTS
from trtopt.measure.loop.inference_stream import InferenceStream
from trtopt.measure.loop.sampling import measure
from trtopt.records import Shape

# ── graphs ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "graph", "captures"),
    [("trtexec-11", None, 1), ("trtexec-10", True, 2), ("trtexec-10", None, 0), ("trtexec-11", False, 0)],
)
def test_a_graph_is_captured_for_every_buffer_set_after_a_plain_run(
    name: str, graph: bool | None, captures: int
) -> None:
    device = ScriptedDevice(SCRIPT)
    measured = run(device, terms(name, graph=graph), "throughput", counted(queries=4))
    queries = sum(len(s.start_ms) for s in (measured.warmups, measured.samples, measured.staged))
    assert device.calls.count("capture") == captures
    assert device.calls.count("launch") == (queries if captures else 0)
    sets = 2 if measured.contract.transfers else 1
    assert device.calls.count("enqueue") == sets + (captures or queries)
    if captures:
        assert device.calls.index("enqueue") < device.calls.index("capture")


@pytest.mark.parametrize("mode", ["latency", "throughput"])
def test_a_refused_graph_renames_the_contract_and_is_noted(mode: str) -> None:
    device = ScriptedDevice(Script(graphs=False))
    measured = run(device, terms("trtexec-11"), mode, counted(queries=2))  # type: ignore[arg-type]
    assert measured.contract.name == "trtexec-11+no-graph"
    assert measured.contract.graph is False
    assert measured.notes == ("measured without a CUDA graph: the script's engine cannot be captured",)
    assert "launch" not in device.calls
    assert device.open == 0


def test_where_one_stream_is_refused_its_graph_none_uses_one() -> None:
    class OneGraph(ScriptedDevice):
        def capture(self, stream: Stream, work: Callable[[], None]) -> ScriptedGraph:
            if "capture" in self.calls:
                raise GraphCaptureError("one graph is enough", "measure with --no-graph")
            return super().capture(stream, work)

    device = OneGraph(SCRIPT)
    measured = run(device, terms("trtexec-11", streams=2), "throughput", counted(queries=4))
    assert measured.contract.graph is False
    assert "launch" not in device.calls


# ── what a query works on ───────────────────────────────────────────────────────────────────────────────


class TracingDevice(ScriptedDevice):
    """Writes down which device buffer each copy fills and each inference reads, and keeps copied bytes."""

    def __init__(self) -> None:
        super().__init__(SCRIPT)
        self.filled: list[int] = []
        self.read: list[int] = []
        self.bound = 0
        self.content: dict[int, bytes] = {}
        self.blocking: list[bool] = []
        self.collecting: list[bool] = []

    def event(self, *, blocking: bool = False, timed: bool = True) -> ScriptedEvent:
        self.blocking.append(blocking)
        return super().event(blocking=blocking, timed=timed)

    def copy_to_device(self, target: DeviceBuffer, source: HostBuffer, stream: Stream) -> None:
        super().copy_to_device(target, source, stream)
        self.filled.append(target.address)
        self.content[target.address] = source.array.tobytes()

    def capture(self, stream: Stream, work: Callable[[], None]) -> ScriptedGraph:
        graph = super().capture(stream, work)
        launch, bound = graph.launch, self.bound

        def traced() -> None:
            self.read.append(bound)
            launch()

        graph.launch = traced  # type: ignore[method-assign]
        return graph


class TracingContext(ScriptedContext):
    device: TracingDevice

    def bind(self, buffers: Mapping[str, DeviceBuffer]) -> None:
        super().bind(buffers)
        self.device.bound = buffers["x"].address

    def enqueue(self, stream: Stream) -> None:
        if self.device.recorded is None:
            self.device.read.append(self.device.bound)
            self.device.collecting.append(gc.isenabled())
        super().enqueue(stream)


class TracingSession(ScriptedSession):
    def context(self, shapes: Mapping[str, Shape]) -> ScriptedContext:
        bindings = super().context(shapes)
        bindings.close()
        return TracingContext(self.device, bindings.bindings)


def traced(name: str, graph: bool | None = None) -> TracingDevice:
    device = TracingDevice()
    session = TracingSession(device)
    measure(subject_of(session), terms(name, graph=graph), "throughput", counted(queries=6))
    session.close()
    assert device.open == 0
    return device


@pytest.mark.parametrize("graph", [False, True])
def test_a_query_computes_on_the_buffers_that_its_own_copies_fill(graph: bool) -> None:
    device = traced("trtexec-10", graph=graph)
    prepared = 2  # one plain run a buffer set
    first, second = device.read[:prepared]
    assert first != second
    assert device.read[prepared:] == device.filled[prepared:]
    assert set(device.read[prepared:]) == {first, second}


@pytest.mark.parametrize("name", CONTRACTS)
def test_every_buffer_holds_the_input_data_under_every_contract(name: str) -> None:
    device = traced(name)
    assert set(device.read) == set(device.content)
    assert set(device.content.values()) == {DATA.tobytes()}


@pytest.mark.parametrize(("name", "blocking"), [("trtexec-10", True), ("trtexec-11", False)])
def test_the_host_waits_as_the_contract_says(name: str, blocking: bool) -> None:
    assert set(traced(name).blocking) == {blocking}


def test_pythons_garbage_collector_rests_while_queries_run() -> None:
    assert gc.isenabled()
    device = traced("isolated")
    assert device.collecting == [True, *[False] * (len(device.collecting) - 1)]
    assert gc.isenabled()


def test_outputs_have_the_shape_and_type_of_the_engines() -> None:
    device = ScriptedDevice(SCRIPT)
    session = ScriptedSession(device)
    inference_stream = InferenceStream(session, SHAPES, INPUTS, terms("trtexec-10"))
    assert device.used == 2 * (INPUT_BYTES + OUTPUT_BYTES)
    first, _ = inference_stream.outputs()
    inference_stream.close()
    session.close()
    assert {name: (array.dtype.name, array.shape) for name, array in first.items()} == {
        "y": ("float32", (8, 2))
    }
    assert device.open == 0


def test_an_event_is_reached_when_the_work_before_it_is_done() -> None:
    device = ScriptedDevice(SCRIPT)
    stream, before, after = device.stream(), device.event(), device.event()
    events: tuple[Event, Event] = (before, after)
    before.record(stream)
    stream.run(2.5)
    after.record(stream)
    assert events[1].elapsed_ms(events[0]) == pytest.approx(2.5, rel=1e-12)
    assert device.now() == 0.0
    after.wait()
    assert device.now() == pytest.approx(0.0025, rel=1e-12)


@pytest.mark.parametrize("transfers", [False, True])
def test_on_a_synchronous_device_only_a_query_with_timed_stages_has_events(
    transfers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, waits = OnnxRuntimeTarget(), list[str]()
    for kind, name in ((HostEvent, "wait"), (HostStream, "wait_for")):
        monkeypatch.setattr(kind, name, lambda *_, name=name: waits.append(name))
    record = HostEvent.record
    monkeypatch.setattr(HostEvent, "record", lambda *given: (waits.append("record"), record(*given)))
    session = target.load(model("g (float[2,4] x) => (float[2,4] y) {y = Relu(x)}").SerializeToString())
    contract = terms("trtexec-11", graph=False, transfers=transfers, queue_ahead=0)
    stream = InferenceStream(session, {"x": (2, 4)}, {"x": np.eye(2, 4, dtype="f4")}, contract)
    assert stream.slots[0].run().gpu_compute_ms is None
    assert waits == []
    query = stream.slots[0].run(timed=True)
    assert waits.count("record") == (6 if transfers else 2)
    assert query.gpu_compute_ms is not None
    assert (query.h2d_ms is None, query.d2h_ms is None) == (not transfers, not transfers)
    assert stream.outputs()[0]["y"].tolist() == np.eye(2, 4).tolist()
    stream.close()
    session.close()


# ── serving: three queries in flight, each with memory of its own ───────────────────────────────────────


@pytest.mark.parametrize("graph", [False, True])
def test_no_query_waits_for_the_memory_of_another(graph: bool) -> None:
    """Of each pair one computes for 2 ms, the other for 0.125 ms: the next input arrives meanwhile."""
    script = Script(compute_ms=[1.0, 1.0, *[2.0, 0.125] * 50], enqueue_ms=[0.0], h2d_ms=1.0, d2h_ms=0.0625)
    limits = counted(queries=40, warmups=0)
    measured = run(ScriptedDevice(script), terms("serving", graph=graph), "throughput", limits)
    ends = measured.samples.end_ms
    assert ends[20] - ends[18] == pytest.approx(2.0 + 0.125, rel=1e-9)


def test_three_queries_in_flight_have_three_sets_on_the_device_and_on_the_host() -> None:
    device = ScriptedDevice(SCRIPT)
    session = ScriptedSession(device)
    inference_stream = InferenceStream(session, SHAPES, INPUTS, terms("serving"))
    assert device.calls.count("device_buffer") == 3 * len(inference_stream.bindings)
    assert device.calls.count("pinned_buffer") == 3 * len(inference_stream.bindings)
    assert device.calls.count("capture") == 3
    inference_stream.close()
    session.close()
    assert device.open == 0


class Watched(ScriptedDevice):
    """Knows when each device buffer is written and read."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.uses: dict[int, list[tuple[float, float, bool]]] = {}
        self.bound: dict[str, int] = {}

    def use(self, address: int, start_s: float, end_s: float, *, writes: bool) -> None:
        self.uses.setdefault(address, []).append((start_s, end_s, writes))

    def copy_to_device(self, target: DeviceBuffer, source: HostBuffer, stream: Stream) -> None:
        super().copy_to_device(target, source, stream)
        end_s = stream.ready_s  # type: ignore[attr-defined]
        self.use(target.address, end_s - self.script.h2d_ms / 1e3, end_s, writes=True)

    def copy_to_host(self, target: HostBuffer, source: DeviceBuffer, stream: Stream) -> None:
        super().copy_to_host(target, source, stream)
        end_s = stream.ready_s  # type: ignore[attr-defined]
        self.use(source.address, end_s - self.script.d2h_ms / 1e3, end_s, writes=False)

    def compute_on(self, bound: Mapping[str, int], start_s: float, end_s: float) -> None:
        self.use(bound["x"], start_s, end_s, writes=False)
        self.use(bound["y"], start_s, end_s, writes=True)

    def capture(self, stream: Stream, work: Callable[[], None]) -> ScriptedGraph:
        graph = super().capture(stream, work)
        launch, bound = graph.launch, dict(self.bound)

        def watched() -> None:
            before_s = stream.ready_s  # type: ignore[attr-defined]
            launch()
            self.compute_on(bound, max(before_s, self.host_s), stream.ready_s)  # type: ignore[attr-defined]

        graph.launch = watched  # type: ignore[method-assign]
        return graph

    def conflicts(self) -> list[tuple[float, float]]:
        """Pairs of uses of one buffer that overlap although one of them writes."""
        return [
            (one[0], other[0])
            for uses in self.uses.values()
            for index, one in enumerate(uses)
            for other in uses[:index]
            if (one[2] or other[2]) and one[0] < other[1] - 1e-9 and other[0] < one[1] - 1e-9
        ]


class WatchedContext(ScriptedContext):
    device: Watched

    def bind(self, buffers: Mapping[str, DeviceBuffer]) -> None:
        super().bind(buffers)
        self.device.bound = {name: buffer.address for name, buffer in buffers.items()}

    def enqueue(self, stream: Stream) -> None:
        before_s = stream.ready_s  # type: ignore[attr-defined]
        super().enqueue(stream)
        if self.device.recorded is None:
            start_s = max(before_s, self.device.host_s)
            self.device.compute_on(self.device.bound, start_s, stream.ready_s)  # type: ignore[attr-defined]


class WatchedSession(ScriptedSession):
    def context(self, shapes: Mapping[str, Shape]) -> ScriptedContext:
        plain = super().context(shapes)
        plain.close()
        return WatchedContext(self.device, plain.bindings)


DURATIONS = st.floats(0.01, 5.0)


@given(
    compute_ms=st.lists(DURATIONS, min_size=1, max_size=8),
    h2d_ms=DURATIONS,
    d2h_ms=DURATIONS,
    queue=st.integers(0, 5),
    graph=st.booleans(),
)
def test_nothing_is_overwritten_while_it_is_read_or_written(
    compute_ms: list[float], h2d_ms: float, d2h_ms: float, queue: int, graph: bool
) -> None:
    script = Script(compute_ms=compute_ms * 8, h2d_ms=h2d_ms, d2h_ms=d2h_ms)
    device = Watched(script)
    session = WatchedSession(device)
    contract = terms("serving", queue_ahead=queue, graph=graph)
    measure(subject_of(session), contract, "throughput", counted(queries=20, warmups=3))
    assert len(device.uses) == 2 * (queue + 1)
    assert device.conflicts() == []
    session.close()
