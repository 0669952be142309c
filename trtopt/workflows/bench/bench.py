"""From a build folder, an engine or an ONNX file to a report of measurements."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from trtopt.data import open_data
from trtopt.data.source import range_notes
from trtopt.device.backends import check_device_options, open_clock_control
from trtopt.device.nvml import NvmlGpu, locked_clocks
from trtopt.device.nvtx import require_nvtx
from trtopt.errors import ArtifactError, DeviceError, TrtoptError, UsageError
from trtopt.executors.api import THIS_HOST, run_job
from trtopt.files.page_cache import drop_from_cache
from trtopt.measure.contracts import contract_for
from trtopt.measure.engine import BenchJob, ColdStartJob, KernelJob, RangesJob
from trtopt.measure.load.load_pass import load_settings
from trtopt.measure.loop.stopping import EARLIEST_S
from trtopt.processes import OnProgress
from trtopt.records import BenchPoint, BenchReport, ColdStart, ColdStarts, KernelPass
from trtopt.requests.measure import BenchRequest
from trtopt.targets import ONNXRUNTIME
from trtopt.workflows.bench.resolve_engines import (
    ResolvedEngines,
    check_own_run,
    check_trust,
    resolve_engines,
    runs_on,
)
from trtopt.workflows.provenance import command_line, now

_RANGES_LIMIT_S = 300.0
"""A process that records ranges and hangs costs no more: a profile does without them."""


def bench(request: BenchRequest) -> BenchReport:
    """Measure the engines of a build folder, one engine of it, or an ONNX file.

    Returns:
        The measurements, one point per engine and batch size, raw samples included.

    Raises:
        NoGpuError, BackendMissingError: the engines cannot run here.

    Example:
        >>> report = trtopt.bench("engines", batch=8, duration=0.1)
        >>> [(row["batch"], row["p50_ms"] < 1000) for row in report.rows()]
        [(8, True)]
        >>> text = report.table()
        >>> frame = report.to_pandas()  # doctest: +SKIP
    """
    path = Path(request.path)
    check_request(request)
    job_of = partial(
        BenchJob,
        contract=contract_for(request.contract, request.terms),
        data=str(request.data) if request.data is not None else None,
        load=load_settings(request.load, request.max_latency),
        warmup_s=request.warmup,
        duration_s=request.duration,
        stop_early=request.stop_early,
        layers=request.layers,
        memory=request.memory,
        nvtx=request.nvtx,
        cuda_profiler=request.cuda_profiler,
    )
    if request.max_latency is not None:
        check_own_run(path, request.backend, request.trust)
    name = runs_on(path, request.backend, request.trust)
    check_device_options(  # before anything is built
        name,
        memory=request.memory,
        cuda_profiler=request.cuda_profiler,
        kernels=request.kernels,
    )
    control = open_clock_control(name) if request.lock_clocks is not False else None
    notes: list[str] = []
    with resolve_engines(path, request, notes) as resolved:
        if request.data is not None:
            notes += range_notes(resolved.inputs, open_data(request.data))
        jobs = [job_of(engine=engine) for engine in resolved.engines]
        with _clocks(control, request.lock_clocks, notes):
            return _run(jobs, resolved, request, notes)


def check_request(request: BenchRequest) -> None:
    """Validate what no engine is needed for."""
    if request.stop_early and request.duration <= EARLIEST_S:
        raise UsageError(
            f"--stop-early with --duration {request.duration:g}: no pass ends within {EARLIEST_S:g} s",
            "write --duration 30, or leave --stop-early out",
        )
    check_trust(request.trust, [Path(request.path)])
    if request.data is not None:
        open_data(request.data)
    if request.nvtx:
        require_nvtx()


@contextmanager
def _clocks(control: NvmlGpu | None, requested: int | bool, notes: list[str]) -> Iterator[None]:
    """Locked clocks, if requested: in this process and not in the workers, which may crash."""
    if control is None:
        yield
        return
    with locked_clocks(control, None if requested is True else requested) as mhz:
        notes.append(f"clocks locked at {mhz} MHz while measuring")
        yield


def _run(
    jobs: Sequence[BenchJob],
    resolved: ResolvedEngines,
    request: BenchRequest,
    notes: list[str],
) -> BenchReport:
    """One job after the other: a device measures one thing at a time. The listener receives each report.

    An engine that is missing or damaged leaves the others to be measured.
    """
    listener = request.listener
    listener.plans([f"batch{job.engine.batch}" for job in jobs])
    created = now()
    report: BenchReport | None = None
    lost: list[ArtifactError] = []
    running = THIS_HOST.run_all_jobs(jobs, limit_s=request.timeout, on_progress=listener.progress)
    try:
        with closing(running) as outcomes:
            for index, result in outcomes:
                if isinstance(result, ArtifactError):
                    lost.append(result)
                    notes.append(_failure_note(jobs[index], result))
                    continue
                if isinstance(result, TrtoptError):
                    raise result
                point = result.point
                if point.failure is None:
                    own = listener.of_job(index).progress
                    point = _with_further_processes(point, jobs[index], request, own)
                report = BenchReport(
                    created=created,
                    argv=command_line(),
                    environment=result.environment,
                    model_sha256=resolved.model_sha256,
                    source_sha256=resolved.source_sha256,
                    points=(*(report.points if report is not None else ()), point),
                    notes=tuple(notes),
                )
                listener.report(report)
                if point.failure is not None:
                    raise DeviceError(
                        f"batch {point.batch}: {point.failure}",
                        "earlier measurements are kept; check the GPU with nvidia-smi",
                    )
    except TrtoptError as error:
        done = len(lost) + (len(report.points) if report is not None else 0)
        if report is not None and done < len(jobs) and report.points[-1].failure is None:
            failed, *others = jobs[done:]
            notes.append(_failure_note(failed, error))
            if others:
                sizes = ", ".join(str(job.engine.batch) for job in others)
                notes.append(f"not measured after that: batch {sizes}")
            listener.report(msgspec.structs.replace(report, notes=tuple(notes)))
        raise
    if lost:
        if report is not None:
            listener.report(msgspec.structs.replace(report, notes=tuple(notes)))
        raise lost[0]
    assert report is not None  # there is a job for every engine, and a build has one at least
    return report


def _failure_note(job: BenchJob, error: TrtoptError) -> str:
    return f"batch {job.engine.batch} could not be measured: {error.summary}"


def _with_further_processes(
    point: BenchPoint, job: BenchJob, request: BenchRequest, on_progress: OnProgress
) -> BenchPoint:
    """The point with what is not measured in the process that measures latency."""
    if request.cold_start:
        starts = _measure_cold_starts(job, request.timeout, on_progress)
        point = msgspec.structs.replace(point, cold_start=starts)
    if request.kernels:
        kernels = _record_kernels(job, request.timeout, on_progress)
        point = msgspec.structs.replace(point, kernels=kernels)
    return point


def _record_kernels(job: BenchJob, timeout: float | None, on_progress: OnProgress) -> KernelPass:
    """The kernels, with the ranges that name their layers where these can be had."""
    found = run_job(KernelJob(bench=job), limit_s=timeout, on_progress=on_progress)
    try:
        limit_s = timeout or _RANGES_LIMIT_S
        marked = run_job(RangesJob(bench=job), limit_s=limit_s, on_progress=on_progress)
    except TrtoptError as error:
        note = f"layers of kernels go by order and time, not by NVTX ranges: {error.summary}"
        return msgspec.structs.replace(found, notes=(*found.notes, note))
    return msgspec.structs.replace(found, marked_runs=marked)


STARTS = 5
"""Of each kind."""
_ZEROS = "context holds a first run on zeros, by which ONNX Runtime finds the shapes of outputs"


def _measure_cold_starts(job: BenchJob, limit_s: float | None, on_progress: OnProgress) -> ColdStarts:
    """Start the job's engine in processes of their own, `STARTS` times with each state of the page cache."""
    made: list[ColdStart] = []
    module_loading, file = "", Path(job.engine.path)
    notes = [_ZEROS] if job.engine.artifact.plan.backend.name == ONNXRUNTIME else []
    states: list[Literal["warm", "cold"]] = ["warm", "cold"]
    for number in range(STARTS):
        for state in tuple(states):
            if state == "cold" and not _drop(file):
                states.remove("cold")
                notes.append("the system keeps the engine's file in its page cache: no cold reads")
                continue
            if state == "warm":
                file.read_bytes()
            on_progress(0, "cold start", number / STARTS)
            started = ColdStartJob(bench=job, page_cache=state, began_s=time.monotonic())
            result = run_job(started, limit_s=limit_s)
            made.append(result.start)
            module_loading = result.module_loading
    return ColdStarts(
        engine_bytes=file.stat().st_size,
        starts=tuple(made),
        module_loading=module_loading,
        notes=tuple(notes),
    )


def _drop(path: Path) -> bool:
    try:
        return drop_from_cache(path)
    except OSError:
        return False
