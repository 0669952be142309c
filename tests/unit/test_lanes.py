"""What a lane hands to the device: graphs, buffers, waits."""

import gc
from collections.abc import Callable, Mapping

import pytest
from scripted import DATA, INPUT_BYTES, OUTPUT_BYTES, SCRIPT, SUBJECT, counted, run, terms

from trtopt.device.api import DeviceBuffer, Event, HostBuffer, Stream
from trtopt.device.fake import (
    Script,
    ScriptedContext,
    ScriptedDevice,
    ScriptedEvent,
    ScriptedGraph,
    ScriptedSession,
)
from trtopt.errors import GraphCaptureError
from trtopt.measure.contracts import CONTRACTS
from trtopt.measure.lane import Lane
from trtopt.measure.loop import measure
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
    queries = len(measured.samples.start_ms) + len(measured.warmups.start_ms)
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

    def event(self, *, blocking: bool = False) -> ScriptedEvent:
        self.blocking.append(blocking)
        return super().event(blocking=blocking)

    def copy_to_device(self, target: DeviceBuffer, source: HostBuffer, stream: Stream) -> None:
        super().copy_to_device(target, source, stream)
        self.filled.append(target.address)
        self.content[target.address] = source.array.tobytes()

    def capture(self, stream: Stream, work: Callable[[], None]) -> ScriptedGraph:
        graph = super().capture(stream, work)
        launch, bound = graph.launch, self.bound

        def traced(stream: Stream) -> None:
            self.read.append(bound)
            launch(stream)

        graph.launch = traced  # type: ignore[method-assign]
        return graph


class TracingContext(ScriptedContext):
    device: TracingDevice

    def bind(self, buffers: Mapping[str, DeviceBuffer]) -> None:
        super().bind(buffers)
        self.device.bound = buffers["x"].address

    def enqueue(self, stream: Stream) -> None:
        if self.device.captured is None:
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
    measure(device, session, SUBJECT, terms(name, graph=graph), "throughput", counted(queries=6))
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
    lane = Lane(device, session, SUBJECT.shapes, SUBJECT.data, terms("trtexec-10"))
    assert device.used == 2 * (INPUT_BYTES + OUTPUT_BYTES)
    outputs = lane.outputs()
    lane.close()
    session.close()
    assert {name: (array.dtype.name, array.shape) for name, array in outputs.items()} == {
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
