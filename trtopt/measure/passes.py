"""The layer pass and the memory pass: each on its own, never while samples are taken."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from trtopt.device.api import AllocationTracker, Device, Session
from trtopt.measure.buffers import device_buffers, fill, host_buffers
from trtopt.measure.lane import Lane
from trtopt.measure.loop import Subject
from trtopt.records import Contract, LayerPass, LayerTime, MemoryPass

_WARM_RUNS = 5
_LAYER_RUNS = 50
_MEMORY_RUNS = 3
_MAX_INSPECTOR_CHARACTERS = 64 << 20
_PLAIN = Contract(name="profiling", graph=False, transfers=False, queue_ahead=0, sync="spin")


def time_layers(device: Device, session: Session, subject: Subject, runs: int = _LAYER_RUNS) -> LayerPass:
    """Each layer's time in each of `runs` runs, in the order in which the engine runs them.

    Layers are told apart by name; a name that a run reports twice is summed. The profiler serialises the
    layers, so their total is no latency. The engine's own description of its layers comes with them.

    Raises:
        MeasurementError: the backend reports no layer times.
    """
    whole = session.layer_pass(subject.shapes, subject.data, runs)
    if whole is not None:
        return whole
    current: dict[str, float] = {}
    collected: dict[str, list[float]] = {}

    def report(name: str, ms: float) -> None:
        current[name] = current.get(name, 0.0) + ms

    with ExitStack() as resources:
        context = session.context(subject.shapes)
        resources.callback(context.close)
        stream = device.stream()
        resources.callback(stream.close)
        buffers = device_buffers(device, context.bindings, resources)
        host = host_buffers(device, context.bindings, subject.data, resources)
        fill(device, context.bindings, buffers, host, stream)
        context.bind(buffers)
        context.report_layers(report)
        for run in range(_WARM_RUNS + runs):
            current.clear()
            context.enqueue(stream)
            stream.synchronize()
            if run >= _WARM_RUNS:
                for name, ms in current.items():
                    collected.setdefault(name, []).append(ms)
        inspector = context.inspect()
    return LayerPass(
        runs=runs,
        layers=tuple(LayerTime(name=name, ms=ms) for name, ms in collected.items()),
        inspector=inspector if inspector and len(inspector) <= _MAX_INSPECTOR_CHARACTERS else None,
    )


def follow_memory(
    device: Device, load: Callable[[AllocationTracker], Session], subject: Subject
) -> MemoryPass:
    """Load the engine with a tracking allocator, run it, unload it, and record every allocation.

    Phases: `load`, `context and buffers` (with its first run), `run`, `unload`.
    """
    tracker = AllocationTracker(device.now)
    used_before = device.used_bytes()
    session = load(tracker)
    try:
        device_memory = session.device_memory_bytes
        tracker.phase = "context and buffers"
        lane = Lane(device, session, subject.shapes, subject.data, _PLAIN)
        try:
            tracker.phase = "run"
            for _ in range(_MEMORY_RUNS):
                lane.slots[0].start()
                lane.slots[0].finish()
            used_after = device.used_bytes()
            buffers_bytes = sum(binding.nbytes for binding in lane.bindings)
            tracker.phase = "unload"
        finally:
            lane.close()
    finally:
        session.close()
    grown = None if used_before is None or used_after is None else used_after - used_before
    return MemoryPass(
        events=tuple(tracker.events),
        buffers_bytes=buffers_bytes,
        engine_device_bytes=device_memory,
        driver_used_bytes=grown,
    )
