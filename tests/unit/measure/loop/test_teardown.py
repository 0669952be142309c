"""Whatever fails, everything that was opened is closed, in reverse order, and the failure is told."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Protocol

import pytest

from tests.support.scripted_device import device as fake
from tests.support.scripted_device.device import Script, ScriptedDevice, ScriptedSession, ScriptedTarget
from tests.support.scripted_runs import (
    INPUT_BYTES,
    OUTPUT_BYTES,
    SHAPES,
    Mode,
    calls_of,
    counted,
    run,
    subject_of,
    terms,
)
from trtopt.errors import DeviceError, DeviceMemoryError
from trtopt.measure.loop.profiling_passes import follow_memory, time_layers
from trtopt.records import ClockReading, Measurement

SHORT = counted(queries=1)


class Closable(Protocol):
    def close(self) -> None: ...


def layers(device: ScriptedDevice) -> None:
    target = ScriptedTarget(device)
    session = target.load(b"engine")
    try:
        time_layers(subject_of(session), runs=2)
    finally:
        session.close()


def replays(device: ScriptedDevice) -> None:
    session = ScriptedTarget(device).load(b"engine")
    try:
        time_layers(subject_of(session), runs=2, graph=True)
    finally:
        session.close()


def memory(device: ScriptedDevice) -> None:
    target = ScriptedTarget(device)
    found = follow_memory(device, lambda tracker: subject_of(target.load(b"engine", track=tracker)))
    if found.failure is not None:  # what was seen until then is kept
        raise DeviceMemoryError(found.failure, "")


def sampling(name: str, mode: Mode, **changes: int | bool) -> Callable[[ScriptedDevice], object]:
    contract = terms(name, **changes)
    return lambda device: run(device, contract, mode, SHORT)


def with_clocks(device: ScriptedDevice) -> object:
    device.script.clocks = [ClockReading(at_ms=0, sm_mhz=1980)]
    return sampling("trtexec-11", "throughput")(device)


PASSES: dict[str, Callable[[ScriptedDevice], object]] = {
    "trtexec-10 latency": sampling("trtexec-10", "latency"),
    "trtexec-10 throughput": sampling("trtexec-10", "throughput"),
    "trtexec-10 with graphs": sampling("trtexec-10", "throughput", graph=True),
    "trtexec-10 with pageable memory": sampling("trtexec-10", "throughput", pinned=False),
    "serving": sampling("serving", "throughput"),
    "trtexec-11 latency": sampling("trtexec-11", "latency"),
    "trtexec-11 on two streams": sampling("trtexec-11", "throughput", streams=2),
    "isolated": sampling("isolated", "latency"),
    "with clocks": with_clocks,
    "layers": layers,
    "layers in a graph": replays,
    "memory": memory,
}
CANNOT_FAIL = "read clocks"


@pytest.mark.parametrize("title", PASSES)
def test_a_pass_that_goes_well_closes_everything(title: str) -> None:
    device = ScriptedDevice(Script())
    PASSES[title](device)
    assert (device.open, device.used) == (0, 0)


def test_the_recorded_runs_make_every_kind_of_call() -> None:
    assert {name for work in PASSES.values() for name, _ in calls_of(work)} == {
        "load",
        "context",
        "stream",
        "event",
        "device_buffer",
        "pinned_buffer",
        "pageable_buffer",
        "copy_to_device",
        "copy_to_host",
        "bind",
        "enqueue",
        "inspect",
        "capture",
        "launch",
        "request_layers",
        "synchronize",
        "wait",
        CANNOT_FAIL,
    }


@pytest.mark.parametrize("title", PASSES)
def test_a_call_that_fails_closes_everything_and_its_error_comes_through(title: str) -> None:
    for name, count in calls_of(PASSES[title]):
        if name == CANNOT_FAIL:
            continue
        call = f"{name} {count}"
        device = ScriptedDevice(Script(fail_at=(name, count)))
        outcome: object
        try:
            outcome = PASSES[title](device)
        except DeviceError as error:
            outcome = error
        if isinstance(outcome, Measurement):  # some samples were there already: they are kept, and marked
            assert outcome.samples.start_ms, call
            assert outcome.failure == f"scripted failure of {name}", call
            assert outcome.untrustworthy == (f"the device failed in the middle: {outcome.failure}",), call
        else:
            assert type(outcome) is DeviceError, call
            assert outcome.problem == f"scripted failure of {name}", call
        assert (device.open, device.used) == (0, 0), call
        assert device.calls.count(name) == count
        assert gc.isenabled(), call


@pytest.mark.parametrize(
    ("title", "sets"),
    [
        ("trtexec-10 latency", 1),
        ("trtexec-10 throughput", 2),
        ("trtexec-11 on two streams", 2),
        ("isolated", 1),
        ("layers", 1),
        ("memory", 1),
    ],
)
def test_running_out_of_memory_anywhere_closes_everything(title: str, sets: int) -> None:
    needed = sets * (INPUT_BYTES + OUTPUT_BYTES)
    for there in sorted({0, INPUT_BYTES - 1, INPUT_BYTES, needed // 2, needed - OUTPUT_BYTES, needed - 1}):
        device = ScriptedDevice(Script(memory_bytes=there))
        with pytest.raises(DeviceMemoryError, match="out of memory"):
            PASSES[title](device)
        assert (device.open, device.used) == (0, 0)
    PASSES[title](ScriptedDevice(Script(memory_bytes=needed)))


@pytest.mark.parametrize("title", PASSES)
def test_everything_is_closed_once_and_in_reverse_order_of_making(
    title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    closed: list[int] = []
    owned = fake.Owned
    make, close = owned.__init__, owned.close

    def note_making(self: fake.Owned, device: ScriptedDevice) -> None:
        make(self, device)
        made.append(id(self))

    def note_closing(self: fake.Owned) -> None:
        close(self)
        closed.append(id(self))

    monkeypatch.setattr(owned, "__init__", note_making)
    monkeypatch.setattr(owned, "close", note_closing)
    kept = ScriptedDevice(Script())
    PASSES[title](kept)
    assert made
    assert closed == made[::-1]


@pytest.mark.parametrize("moment", range(1, 40, 3))
@pytest.mark.parametrize("title", ["trtexec-10 throughput", "trtexec-11 on two streams", "memory"])
def test_an_interruption_closes_everything(title: str, moment: int) -> None:
    class Interrupted(ScriptedDevice):
        """Ctrl-C comes at the n-th look at the clock."""

        looks = 0

        def now(self) -> float:
            self.looks += 1
            if self.looks == moment:
                raise KeyboardInterrupt
            return super().now()

    device = Interrupted(Script())
    try:
        PASSES[title](device)
    except KeyboardInterrupt:
        pass
    else:
        assert device.looks < moment
    assert (device.open, device.used) == (0, 0)
    assert gc.isenabled()


def test_the_garbage_collector_stays_off_for_whoever_had_it_off() -> None:
    gc.disable()
    try:
        for script in (Script(), Script(fail_at=("wait", 1))):
            try:
                PASSES["isolated"](ScriptedDevice(script))
            except DeviceError:
                assert script.fail_at
            assert not gc.isenabled()
    finally:
        gc.enable()


def test_closing_twice_does_no_harm() -> None:
    device = ScriptedDevice(Script())
    session = ScriptedSession(device)
    makers: list[Callable[[], Closable]] = [
        device.stream,
        device.event,
        partial(device.device_buffer, 64),
        partial(device.pinned_buffer, 64),
        partial(session.context, SHAPES),
        partial(device.capture, device.stream(), lambda: None),
    ]
    held = device.open
    for make in makers:
        thing = make()
        thing.close()
        thing.close()
        assert device.open == held
    assert device.used == 0
