"""The layer, memory and kernel passes: each on its own, never while samples are taken."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from trtopt.device.api import AllocationTracker, Device
from trtopt.device.sized_outputs import capture_inference
from trtopt.errors import DeviceMemoryError, GraphCaptureError, MeasurementError
from trtopt.measure.loop.inference_stream import InferenceStream, ready_context
from trtopt.measure.loop.sampling import Subject
from trtopt.records import (
    MORE_CONTEXTS,
    Contract,
    KernelActivity,
    KernelLaunch,
    KernelPass,
    LayerPass,
    LayerTime,
    MemoryPass,
    TracedRun,
)

_WARM_RUNS = 5
_LAYER_RUNS = 50
_MEMORY_RUNS = 3
_KERNEL_RUNS, _MARKED_RUNS = 20, 3
_MORE_CONTEXTS = 2
_MAX_INSPECTOR_CHARACTERS = 64 << 20
_NS = 1e-6
_PLAIN = Contract(name="profiling", graph=False, transfers=False, queue_ahead=0, sync="spin")


def time_layers(subject: Subject, runs: int = _LAYER_RUNS, *, graph: bool = False) -> LayerPass:
    """Each layer's time in each of `runs` runs, in the order in which the engine runs them.

    With `graph` the runs are replays of a CUDA graph; where layers cannot be timed so they are plain runs,
    and a note says why. Layers are identified by name; a name that a run reports twice is summed. The
    profiler serialises the layers, so their total is no latency. The engine's own description of its layers
    comes with them.
    """
    whole = subject.session.layer_pass(subject.shapes, subject.data, runs)
    if whole is not None:
        return whole
    if not graph:
        return _layer_pass(subject, runs, replayed=False)
    try:
        return _layer_pass(subject, runs, replayed=True)
    except GraphCaptureError as error:
        plain = _layer_pass(subject, runs, replayed=False)
        note = f"layers were timed without a CUDA graph: {error.problem}"
        return msgspec.structs.replace(plain, notes=(note,))


def _layer_pass(subject: Subject, runs: int, *, replayed: bool) -> LayerPass:
    """One way to time layers; a replay leaves the events that the profiler reads on request."""
    current: dict[str, float] = {}
    collected: dict[str, list[float]] = {}

    def report(name: str, ms: float) -> None:
        current[name] = current.get(name, 0.0) + ms

    with ExitStack() as resources:
        context, stream = ready_context(subject.session, subject.shapes, subject.data, resources)
        context.report_layers(report, on_request=replayed)
        launch = context.launcher(stream)
        if replayed:
            launch()
            stream.synchronize()
            launch = capture_inference(subject.session.device, context, stream, resources)
        for run in range(_WARM_RUNS + runs):
            current.clear()
            launch()
            stream.synchronize()
            if replayed and (not context.request_layers() or not any(current.values())):
                raise GraphCaptureError("a replay has no layer times")
            if run >= _WARM_RUNS:
                for name, ms in current.items():
                    collected.setdefault(name, []).append(ms)
        inspector = context.inspect()
    return LayerPass(
        runs=runs,
        graph=replayed,
        layers=tuple(LayerTime(name=name, ms=ms) for name, ms in collected.items()),
        inspector=inspector if inspector and len(inspector) <= _MAX_INSPECTOR_CHARACTERS else None,
    )


def follow_memory(
    device: Device, load: Callable[[AllocationTracker], Subject], engine_file_bytes: int | None = None
) -> MemoryPass:
    """Load an engine with a tracking allocator, run it, unload it, and record every allocation.

    Phases: `load`, `context and buffers` (with its first run), `run`, `more contexts`, `unload`. When memory
    runs out, what was seen up to there comes back, marked.
    """
    tracker = AllocationTracker(device.now)
    before = device.used_bytes(), _resident_bytes()
    found: dict[str, Any] = {"buffers_bytes": 0, "engine_device_bytes": None, "driver_used_bytes": None}

    def seen() -> MemoryPass:
        return MemoryPass(events=tuple(tracker.events), engine_file_bytes=engine_file_bytes, **found)

    try:
        subject = load(tracker)
        try:
            found["engine_device_bytes"] = subject.session.device_memory_bytes
            tracker.phase = "context and buffers"
            inference_stream = InferenceStream(subject.session, subject.shapes, subject.data, _PLAIN)
            try:
                found["buffers_bytes"] = sum(binding.nbytes for binding in inference_stream.bindings)
                tracker.phase = "run"
                for _ in range(_MEMORY_RUNS):
                    inference_stream.slots[0].run()
                used, resident = map(_growth, before, (device.used_bytes(), _resident_bytes()))
                found |= {"driver_used_bytes": used, "host_bytes": resident}
                tracker.phase = MORE_CONTEXTS
                found["context_bytes"] = _further_contexts(subject, lambda: (seen().live_bytes or [0])[-1])
            finally:
                tracker.phase = "unload"
                inference_stream.close()
        finally:
            tracker.phase = "unload"
            subject.session.close()
    except DeviceMemoryError as error:
        found["failure"] = error.problem
    return seen()


def _further_contexts(subject: Subject, live: Callable[[], int]) -> tuple[int, ...]:
    """What each context takes next to the one that ran, all alive at once, as many as fit."""
    sizes = []
    with ExitStack() as resources, suppress(DeviceMemoryError):
        for _ in range(_MORE_CONTEXTS):
            before = live()
            resources.callback(subject.session.context(subject.shapes).close)
            sizes.append(live() - before)
    return tuple(sizes)


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _resident_bytes() -> int | None:
    """This process's resident memory; None where the system has no /proc as Linux has."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


# ── kernels ───────────────────────────────────────────────────────────────────────────────────────────
#
# Every launch of a number of inferences, under the device's tracer. A pass of its own records plain ones with
# the ranges that the backend opens for its layers: they slow the host. Runs are then brought together: launch
# n of each is the same launch.


def merge_runs(runs: Sequence[Sequence[KernelActivity]]) -> tuple[tuple[KernelLaunch, ...], int]:
    """The launches of the runs with the commonest sequence of names, and how many runs differ from it.

    A run's launches are put in the order of their starts; a run without any counts as different.
    """
    ordered = [sorted(run, key=lambda one: (one.start_ns, one.end_ns, one.graph_node)) for run in runs]
    sequences = [tuple((one.kind, one.name, one.grid) for one in run) for run in ordered]
    counts = Counter(sequence for sequence in sequences if sequence)
    if not counts:
        return (), len(runs)
    common = counts.most_common(1)[0][0]
    same = [run for run, sequence in zip(ordered, sequences, strict=True) if sequence == common]
    return tuple(_launch(one, same) for one in range(len(common))), len(runs) - len(same)


def _launch(index: int, runs: Sequence[Sequence[KernelActivity]]) -> KernelLaunch:
    return KernelLaunch(
        **runs[0][index].launch,
        start_ms=[(run[index].start_ns - run[0].start_ns) * _NS for run in runs],
        ms=[(run[index].end_ns - run[index].start_ns) * _NS for run in runs],
    )


def record_kernels(subject: Subject, *, graph: bool = False) -> KernelPass:
    """The launches of `_KERNEL_RUNS` inferences, one at a time; with `graph` of replays of a CUDA graph.

    Where no graph can be captured, or the driver reports no launches within one, the runs are plain, and a
    note says why.
    """
    notes: list[str] = []
    for replayed in (True, False) if graph else (False,):
        try:
            runs, dropped = _trace(subject, _KERNEL_RUNS, replayed=replayed)
        except GraphCaptureError as error:
            notes.append(f"kernels were recorded without a CUDA graph: {error.problem}")
            continue
        if not replayed or any(run.activities for run in runs):
            break
        notes.append("the driver reports no kernels within a CUDA graph: they are those of plain runs")
    launches, different = merge_runs([run.activities for run in runs])
    if not launches:
        raise MeasurementError(
            "the tracer reports no kernels", "see whether another profiler is attached, and omit --kernels"
        )
    return KernelPass(
        runs=len(runs),
        launches=launches,
        graph=replayed,
        dropped=dropped,
        different_runs=different,
        notes=tuple(notes),
    )


def record_ranges(subject: Subject) -> tuple[TracedRun, ...]:
    """Plain inferences with the driver's calls and the backend's NVTX ranges."""
    runs, lost = _trace(subject, _MARKED_RUNS, ranges=True)
    if lost:
        raise MeasurementError(
            f"{lost} records of ranges and calls did not fit the tracer's buffers", "profile again"
        )
    if not any(one.ranges for one in runs):
        raise MeasurementError(
            "no NVTX ranges reach CUPTI",
            "set NVTX_INJECTION64_PATH to the libcupti.so that cupti-python loads",
        )
    return tuple(runs)


def _trace(
    subject: Subject, count: int, *, replayed: bool = False, ranges: bool = False
) -> tuple[list[TracedRun], int]:
    """What the tracer saw of `count` runs, and how many records it dropped."""
    device = subject.session.device
    with ExitStack() as resources:
        recorder = resources.enter_context(closing(device.activity_recorder(ranges=ranges)))
        context, stream = ready_context(subject.session, subject.shapes, subject.data, resources)
        if ranges:
            context.emit_ranges()
        launch = context.launcher(stream)

        def run() -> None:
            launch()
            stream.synchronize()

        run()
        if replayed:
            launch = capture_inference(device, context, stream, resources)
        for _ in range(_WARM_RUNS):
            run()
        recorder.dropped()
        runs = [recorder.record(run) for _ in range(count)]
        return runs, recorder.dropped()


# ── copies within the device ────────────────────────────────────────────────────────────────────────────

_WARM_COPIES = 3
_COPIES = 20


def copy_bandwidth(device: Device, nbytes: int) -> float:
    """Bytes/s, those read and those written together: the median of single copies of `nbytes`.

    Timed by events on the device. `nbytes` should be many times its caches.
    """
    with ExitStack() as resources:
        stream = resources.enter_context(closing(device.stream()))
        source, target = (resources.enter_context(closing(device.device_buffer(nbytes))) for _ in range(2))
        begin, end = (resources.enter_context(closing(device.event())) for _ in range(2))
        taken_ms = []
        for copy in range(_WARM_COPIES + _COPIES):
            begin.record(stream)
            device.copy_on_device(target, source, stream)
            end.record(stream)
            end.wait()
            if copy >= _WARM_COPIES:
                taken_ms.append(end.elapsed_ms(begin))
    return 2 * nbytes / (float(np.median(taken_ms)) / 1e3)
