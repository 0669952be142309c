"""The kernel pass: every launch of a number of inferences, under the device's tracer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing

from trtopt.device.api import Context, Device, Session, Stream
from trtopt.device.sized_outputs import require_fixed_sizes
from trtopt.errors import GraphCaptureError, MeasurementError
from trtopt.measure.loop.buffers import device_buffers, fill, host_buffers
from trtopt.measure.loop.merge_runs import merge_runs
from trtopt.measure.loop.run_pass import Subject
from trtopt.records import KernelActivity, KernelPass

_WARM_RUNS = 5
_RUNS = 20


def record_kernels(device: Device, session: Session, subject: Subject, *, graph: bool = False) -> KernelPass:
    """The launches of `_RUNS` inferences, one at a time; with `graph` of replays of a CUDA graph.

    Where no graph can be captured, or the driver reports no launches within one, the runs are plain, and a
    note says why.

    Raises:
        DeviceError: the tracer cannot be used here, with the reason.
        MeasurementError: it reports nothing.
    """
    notes: list[str] = []
    runs, dropped, is_graph = _recorded(device, session, subject, graph=graph, notes=notes)
    if graph and is_graph and not any(runs):
        notes.append("the driver reports no kernels within a CUDA graph: they are those of plain runs")
        runs, dropped, is_graph = _recorded(device, session, subject, graph=False, notes=notes)
    launches, different = merge_runs(runs)
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


def _recorded(
    device: Device, session: Session, subject: Subject, *, graph: bool, notes: list[str]
) -> tuple[list[list[KernelActivity]], int, bool]:
    """The runs' activities, the number of dropped records, and whether a graph was replayed."""
    with ExitStack() as resources:
        recorder = resources.enter_context(closing(device.activity_recorder()))
        context = resources.enter_context(closing(session.context(subject.shapes)))
        stream = resources.enter_context(closing(device.stream()))
        buffers = device_buffers(device, context.bindings, resources)
        host = host_buffers(device, context.bindings, subject.data, resources)
        fill(device, context.bindings, buffers, host, stream)
        context.bind(buffers)
        launch, is_graph = _prepared(device, context, stream, resources, graph=graph, notes=notes)

        def run() -> None:
            launch()
            stream.synchronize()

        for _ in range(_WARM_RUNS):
            run()
        recorder.dropped()
        runs = [recorder.record(run) for _ in range(_RUNS)]
        return runs, recorder.dropped(), is_graph


def _prepared(
    device: Device, context: Context, stream: Stream, resources: ExitStack, *, graph: bool, notes: list[str]
) -> tuple[Callable[[], None], bool]:
    """What launches one inference, after one plain run."""
    context.enqueue(stream)
    stream.synchronize()
    if graph:
        try:
            require_fixed_sizes(context)
            captured = device.capture(stream, lambda: context.enqueue(stream))
        except GraphCaptureError as error:
            notes.append(f"kernels were recorded without a CUDA graph: {error.problem}")
        else:
            resources.callback(captured.close)
            return lambda: captured.launch(stream), True
    return lambda: context.enqueue(stream), False
