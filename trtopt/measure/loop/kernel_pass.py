"""The kernel pass: every launch of a number of inferences, under the device's tracer.

A pass of its own records plain inferences with the ranges that the backend opens for its layers: they slow
the host. Runs are then brought together: launch n of each is the same launch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing

from trtopt.device.api import Device, Session
from trtopt.device.sized_outputs import capture_inference
from trtopt.errors import GraphCaptureError, MeasurementError
from trtopt.measure.loop.buffers import ready_context
from trtopt.measure.loop.run_pass import Subject
from trtopt.records import KernelActivity, KernelLaunch, KernelPass, TracedRun

_NS = 1e-6


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


_WARM_RUNS = 5
_RUNS = 20
_MARKED_RUNS = 3


def record_kernels(device: Device, session: Session, subject: Subject, *, graph: bool = False) -> KernelPass:
    """The launches of `_RUNS` inferences, one at a time; with `graph` of replays of a CUDA graph.

    Where no graph can be captured, or the driver reports no launches within one, the runs are plain, and a
    note says why.
    """
    notes: list[str] = []
    runs: list[TracedRun] = []
    dropped, is_graph = 0, False
    if graph:
        try:
            runs, dropped = _traced(device, session, subject, _RUNS, replayed=True)
            is_graph = any(run.activities for run in runs)
            if not is_graph:
                notes.append(
                    "the driver reports no kernels within a CUDA graph: they are those of plain runs"
                )
        except GraphCaptureError as error:
            notes.append(f"kernels were recorded without a CUDA graph: {error.problem}")
    if not is_graph:
        runs, dropped = _traced(device, session, subject, _RUNS)
    launches, different = merge_runs([run.activities for run in runs])
    if not launches:
        raise MeasurementError(
            "the tracer reports no kernels", "see whether another profiler is attached, and omit --kernels"
        )
    return KernelPass(
        runs=len(runs),
        launches=launches,
        graph=is_graph,
        dropped=dropped,
        different_runs=different,
        notes=tuple(notes),
    )


def record_ranges(device: Device, session: Session, subject: Subject) -> tuple[TracedRun, ...]:
    """Plain inferences with the driver's calls and the backend's NVTX ranges."""
    runs, lost = _traced(device, session, subject, _MARKED_RUNS, ranges=True)
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


def _traced(
    device: Device,
    session: Session,
    subject: Subject,
    count: int,
    *,
    replayed: bool = False,
    ranges: bool = False,
) -> tuple[list[TracedRun], int]:
    """What the tracer saw of `count` runs, and how many records it dropped."""
    with ExitStack() as resources:
        recorder = resources.enter_context(closing(device.activity_recorder(ranges=ranges)))
        context, stream = ready_context(device, session, subject.shapes, subject.data, resources)
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
