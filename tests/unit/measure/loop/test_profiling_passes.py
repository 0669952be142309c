from collections.abc import ItemsView, Iterator, Mapping

import pytest

from tests.support.scripted_device.device import (
    Script,
    ScriptedContext,
    ScriptedDevice,
    ScriptedSession,
    ScriptedTarget,
)
from tests.support.scripted_runs import DATA, INPUT_BYTES, OUTPUT_BYTES, subject_of
from trtopt.device.api import AllocationTracker, Binding, DeviceBuffer, HostBuffer, Stream
from trtopt.errors import DeviceMemoryError
from trtopt.measure.loop import profiling_passes as passes
from trtopt.measure.loop.profiling_passes import follow_memory, time_layers
from trtopt.records import LayerPass, LayerTime, MemoryPass, Shape

# ── layers ──────────────────────────────────────────────────────────────────────────────────────────────


class ByRun(Mapping[str, float]):
    """Layers whose times tell the run: `conv` is reported twice a run, as run + 0.25 and as 0.5."""

    def __init__(self) -> None:
        self.run = 0

    def __getitem__(self, name: str) -> float:
        raise KeyError(name)

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[str]:
        return iter(("conv", "relu", "conv"))

    def items(self) -> ItemsView[str, float]:
        self.run += 1
        return [("conv", self.run + 0.25), ("relu", 8.0 * self.run), ("conv", 0.5)]  # type: ignore[return-value]


def layers_of(script: Script, runs: int) -> LayerPass:
    device = ScriptedDevice(script)
    session = ScriptedTarget(device).load(b"engine")
    found = time_layers(subject_of(session), runs=runs)
    session.close()
    assert device.open == 0
    return found


def test_every_layer_has_its_time_in_every_run() -> None:
    found = layers_of(Script(layers={"conv": 1.5, "relu": 0.25}), runs=3)
    assert found == LayerPass(
        runs=3, layers=(LayerTime(name="conv", ms=[1.5] * 3), LayerTime(name="relu", ms=[0.25] * 3))
    )


@pytest.mark.parametrize("warm", [0, 2])
def test_warm_runs_are_dropped_and_a_layer_reported_twice_is_summed(
    warm: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "_WARM_RUNS", warm)
    first, second, third = (run + warm for run in (1, 2, 3))
    assert layers_of(Script(layers=ByRun()), runs=3).layers == (
        LayerTime(name="conv", ms=[first + 0.75, second + 0.75, third + 0.75]),
        LayerTime(name="relu", ms=[8.0 * first, 8.0 * second, 8.0 * third]),
    )


def test_some_runs_are_warm_runs() -> None:
    layers = ByRun()
    layers_of(Script(layers=layers), runs=3)
    assert layers.run > 3


def test_layers_are_in_the_order_in_which_the_engine_runs_them() -> None:
    layers = {"z": 1.0, "a": 3.0, "m": 2.0}
    assert [layer.name for layer in layers_of(Script(layers=layers), runs=1).layers] == ["z", "a", "m"]


def test_an_engine_that_reports_no_layers_has_none() -> None:
    assert layers_of(Script(layers={}), runs=2) == LayerPass(runs=2, layers=())


# ── layers in a CUDA graph ──────────────────────────────────────────────────────────────────────────────


def replayed(script: Script, runs: int = 3) -> tuple[LayerPass, list[str]]:
    device = ScriptedDevice(script)
    session = ScriptedTarget(device).load(b"engine")
    found = time_layers(subject_of(session), runs=runs, graph=True)
    session.close()
    assert device.open == 0
    return found, device.calls


def test_layers_are_timed_in_replays_and_each_replay_is_asked_for_them_once_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passes, "_WARM_RUNS", 1)
    found, calls = replayed(Script(layers={"conv": 1.5, "relu": 0.25}))
    assert found.graph
    assert found.layers == (LayerTime(name="conv", ms=[1.5] * 3), LayerTime(name="relu", ms=[0.25] * 3))
    assert found.notes == ()
    assert calls[calls.index("capture") :] == [
        *("capture", "enqueue"),
        *("launch", "synchronize", "request_layers") * 4,
        "inspect",
    ]


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (Script(graphs=False), "cannot be captured"),
        (Script(replayed_layers=False), "a replay has no layer times"),
        (Script(layers={"conv": 0.0}), "a replay has no layer times"),
    ],
)
def test_where_a_graph_tells_no_layers_they_are_timed_in_plain_runs_and_a_note_names_the_reason(
    script: Script, told: str
) -> None:
    found, calls = replayed(script)
    assert not found.graph
    assert len(found.layers[0].ms) == found.runs == 3
    (note,) = found.notes
    assert told in note
    assert "launch" not in calls[calls.index("context", calls.index("capture")) :]


class ReadingDevice(ScriptedDevice):
    """Copies really copy, and inferences write down the input they find."""

    def __init__(self) -> None:
        super().__init__(Script())
        self.bound: DeviceBuffer | None = None
        self.memory: dict[int, bytes] = {}
        self.found: list[bytes | None] = []

    def copy_to_device(self, target: DeviceBuffer, source: HostBuffer, stream: Stream) -> None:
        super().copy_to_device(target, source, stream)
        self.memory[target.address] = source.array.tobytes()


class ReadingContext(ScriptedContext):
    device: ReadingDevice

    def bind(self, buffers: Mapping[str, DeviceBuffer]) -> None:
        super().bind(buffers)
        self.device.bound = buffers["x"]

    def enqueue(self, stream: Stream) -> None:
        super().enqueue(stream)
        assert self.device.bound is not None
        self.device.found.append(self.device.memory.get(self.device.bound.address))


class ReadingSession(ScriptedSession):
    def context(self, shapes: Mapping[str, Shape]) -> ScriptedContext:
        plain = super().context(shapes)
        plain.close()
        return ReadingContext(self.device, plain.bindings)


def test_the_layer_pass_runs_on_the_input_data() -> None:
    device = ReadingDevice()
    time_layers(subject_of(ReadingSession(device)), runs=2)
    assert set(device.found) == {DATA.tobytes()}


def test_the_memory_pass_runs_on_the_input_data() -> None:
    device = ReadingDevice()
    follow_memory(device, lambda tracker: subject_of(ReadingSession(device)))
    assert set(device.found) == {DATA.tobytes()}


def test_the_engines_own_description_comes_with_the_layers() -> None:
    text = '{"Layers": [], "Metadata": "a\x1eb"}'
    assert layers_of(Script(inspector=text), runs=1).inspector == text
    assert layers_of(Script(inspector=""), runs=1).inspector is None


def test_a_description_beyond_bounds_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_MAX_INSPECTOR_CHARACTERS", 10)
    assert layers_of(Script(inspector="x" * 10), runs=1).inspector == "x" * 10
    assert layers_of(Script(inspector="x" * 11), runs=1).inspector is None


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────


class AllocatingSession(ScriptedSession):
    """Takes and gives memory back at every step of its life; sizes tell the step."""

    def __init__(self, device: ScriptedDevice, tracker: AllocationTracker) -> None:
        super().__init__(device)
        self.tracker = tracker
        self.addresses = iter((2, 4, 5))
        tracker.add("allocate", 100, 1)

    def context(self, shapes: Mapping[str, Shape]) -> ScriptedContext:
        plain = super().context(shapes)
        plain.close()
        return AllocatingContext(self.device, plain.bindings, self.tracker, next(self.addresses))

    def close(self) -> None:
        self.tracker.add("deallocate", 100, 1)
        super().close()


class AllocatingContext(ScriptedContext):
    def __init__(
        self,
        device: ScriptedDevice,
        bindings: tuple[Binding, ...],
        tracker: AllocationTracker,
        address: int,
    ) -> None:
        super().__init__(device, bindings)
        self.tracker, self.address = tracker, address
        tracker.add("allocate", 200, address)

    def enqueue(self, stream: Stream) -> None:
        self.tracker.add("allocate", 300, 3, stream.handle)
        super().enqueue(stream)
        self.tracker.add("deallocate", 300, 3, stream.handle)

    def close(self) -> None:
        self.tracker.add("deallocate", 200, self.address)
        super().close()


def memory_of(device: ScriptedDevice) -> MemoryPass:
    found = follow_memory(device, lambda tracker: subject_of(AllocatingSession(device, tracker)))
    assert device.open == 0
    return found


def test_every_allocation_is_reported_with_the_phase_it_happened_in() -> None:
    events = memory_of(ScriptedDevice(Script())).events
    told = [(event.phase, event.kind, event.size_bytes, event.address, event.stream) for event in events]
    run = [("allocate", 300, 3, 1), ("deallocate", 300, 3, 1)]
    assert told == [
        ("load", "allocate", 100, 1, None),
        ("context and buffers", "allocate", 200, 2, None),
        *(("context and buffers", *call) for call in run),
        *(("run", *call) for call in run * 3),
        ("more contexts", "allocate", 200, 4, None),
        ("more contexts", "allocate", 200, 5, None),
        ("more contexts", "deallocate", 200, 5, None),
        ("more contexts", "deallocate", 200, 4, None),
        ("unload", "deallocate", 200, 2, None),
        ("unload", "deallocate", 100, 1, None),
    ]


def test_what_was_allocated_is_released() -> None:
    live = 0
    for event in memory_of(ScriptedDevice(Script())).events:
        live += event.size_bytes if event.kind == "allocate" else -event.size_bytes
    assert live == 0


def test_allocations_are_reported_in_milliseconds_since_the_pass_began() -> None:
    device = ScriptedDevice(Script(enqueue_ms=[0.0], compute_ms=[1.0], h2d_ms=0.5))
    device.host_s = 7.0
    times = [event.at_ms for event in memory_of(device).events]
    # The copy of the input takes 0.5 ms; each of the four runs then begins and ends its call, and takes 1 ms.
    assert times == pytest.approx(
        [0.0, 0.0, 0.5, 0.5, 1.5, 1.5, 2.5, 2.5, 3.5, 3.5, *[4.5] * 6], rel=1e-9, abs=1e-9
    )


def test_the_memory_pass_tells_buffers_the_engines_need_and_the_drivers_growth() -> None:
    device = ScriptedDevice(Script())
    others = device.device_buffer(1000)
    found = follow_memory(device, lambda tracker: subject_of(ScriptedTarget(device).load(b"", track=tracker)))
    assert found.buffers_bytes == INPUT_BYTES + OUTPUT_BYTES
    assert found.engine_device_bytes == ScriptedSession.device_memory_bytes
    assert found.driver_used_bytes == INPUT_BYTES + OUTPUT_BYTES
    others.close()
    assert (device.open, device.used) == (0, 0)


def test_growth_is_unknown_where_the_driver_tells_nothing() -> None:
    class Silent(ScriptedDevice):
        def used_bytes(self) -> int | None:
            return None

    assert memory_of(Silent(Script())).driver_used_bytes is None


def test_each_further_context_is_reported_with_what_it_took() -> None:
    assert memory_of(ScriptedDevice(Script())).context_bytes == (200, 200)


class Cramped(AllocatingSession):
    """There is room for so many contexts."""

    room = 1

    def context(self, shapes: Mapping[str, Shape]) -> ScriptedContext:
        if not self.room:
            self.tracker.add("allocate", 200, 0)
            raise DeviceMemoryError("no execution context could be made", "use a smaller batch")
        self.room -= 1
        return super().context(shapes)


@pytest.mark.parametrize(("room", "seen"), [(1, ()), (2, (200,)), (3, (200, 200))])
def test_contexts_that_there_is_no_room_for_end_nothing(room: int, seen: tuple[int, ...]) -> None:
    device = ScriptedDevice()

    def load(tracker: AllocationTracker) -> ScriptedSession:
        session = Cramped(device, tracker)
        session.room = room
        return session

    found = follow_memory(device, lambda tracker: subject_of(load(tracker)))
    assert (found.context_bytes, found.failure) == (seen, None)
    assert found.live_bytes[-1] == 0
    assert device.open == 0


def test_when_memory_runs_out_what_was_seen_up_to_there_is_kept_and_marked() -> None:
    device = ScriptedDevice(Script(memory_bytes=INPUT_BYTES))
    found = memory_of(device)
    assert found.failure is not None
    assert "out of memory" in found.failure
    assert [event.phase for event in found.events] == ["load", *["context and buffers"] * 2, "unload"]
    assert (found.driver_used_bytes, found.context_bytes) == (None, ())
    assert device.open == 0


def test_the_engines_size_comes_with_the_memory_pass() -> None:
    device = ScriptedDevice()
    found = follow_memory(device, lambda tracker: subject_of(AllocatingSession(device, tracker)), 4321)
    assert found.engine_file_bytes == 4321
