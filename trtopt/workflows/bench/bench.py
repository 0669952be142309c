"""From a build folder, an engine or an ONNX file to a report of measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from trtopt.builder.shapes import shapes_at
from trtopt.data import open_data
from trtopt.device.affinity import AUTO, listed, parse_cores
from trtopt.device.api import ClockControl
from trtopt.device.backends import check_device_options, open_clock_control
from trtopt.device.clocks import locked_clocks
from trtopt.device.nvtx import require_nvtx
from trtopt.errors import DeviceError, TrtoptError, UsageError
from trtopt.measure.contracts import DEFAULT, changed, contract_named
from trtopt.measure.engine import BenchJob
from trtopt.measure.engine_kernels import KernelJob, KernelsRecorded
from trtopt.measure.load.load_pass import load_settings
from trtopt.measure.loop.idle_pass import parse_gaps
from trtopt.recipe import Recipe, batch_sizes, check_timeout, input_sizes, shape_flags
from trtopt.records import BenchReport, EngineArtifact, KernelPass, Terms
from trtopt.workers.protocol import Benched
from trtopt.workers.supervisor import run_jobs
from trtopt.workflows.bench.cold_start import measure_cold_starts
from trtopt.workflows.bench.resolve_engines import ResolvedEngines, check_trust, resolve_engines, runs_on
from trtopt.workflows.engine_points import points
from trtopt.workflows.invocation import command_line, now
from trtopt.workflows.listener import SILENT, Listener


def bench(
    path: str | Path,
    *,
    batch: int | Sequence[int] | None = None,
    shapes: Mapping[str, str] | None = None,
    axes: Mapping[str, int | Sequence[int]] | None = None,
    backend: str | None = None,
    contract: str | None = None,
    terms: Terms | None = None,
    duration: float = 3.0,
    warmup: float = 0.2,
    data: str | Path | None = None,
    layers: bool = False,
    memory: bool = False,
    load: str | None = None,
    max_latency: str | None = None,
    kernels: bool = False,
    idle: str | None = None,
    cold_start: bool = False,
    cpu_affinity: str | None = None,
    lock_clocks: int | bool = False,
    nvtx: bool = False,
    cuda_profiler: bool = False,
    timeout: float | None = None,
    trust: Sequence[str] = (),
    listener: Listener = SILENT,
) -> BenchReport:
    """Measure the engines of a build folder, one engine of it, or an ONNX file.

    Args:
        path: the folder, engine or ONNX file.
        batch: batch sizes; by default every one there is an engine for (1, for an ONNX file).
        shapes, axes: as for `build`, of inputs with dynamic axes besides the batch: what an ONNX file is
            built for; an engine is measured at the tuned length of MIN,OPT,MAX.
        backend: by default the one that the engines were built with. `auto` takes the CPU where no GPU is;
            another backend than the engines' own builds the folder's model again, in a temporary folder.
        contract, terms: a name [default: trtexec-11], and changes as in `{"graph": False}`: `records.Terms`.
        duration, warmup: seconds of sampling a pass, and before samples count.
        data: input samples: what `trtopt.data.open_data` takes; by default seeded random input.
        layers, memory: time every layer, trace every allocation, each in a separate pass.
        load: let requests arrive at this rate (`RATE` or `poisson:RATE`, per second), in a separate pass.
        max_latency: find the highest rate that meets it, as in `p99=5ms`.
        kernels: record every kernel, in a separate pass.
        idle: pauses, as in `1,10,100ms`: latency after each, in a separate pass.
        cold_start: start each engine in fresh processes as well, and time every phase.
        cpu_affinity: keep the host threads on cores: `auto` (those near the GPU) or a list like `0-3,8`.
        lock_clocks: hold the GPU's clocks at so many MHz while measuring, or where they are judged (True),
            and give them back however it ends, on signals only if they become exceptions.
        nvtx, cuda_profiler: mark what is done with NVTX ranges; have CUDA's profiler capture samples only.
        timeout: seconds that a batch size may take.
        trust: engines (names or paths) to load unvouched for.
        listener: hears progress, notes and, after each engine, the report so far.

    Raises:
        TrtoptError: with what is wrong and what to do.
    """
    batch, sizes = batch_sizes(batch), input_sizes(shapes, axes)
    _check(Path(path), trust, duration, warmup, timeout, data, cpu_affinity, lock_clocks, nvtx)
    job_of = partial(
        BenchJob,
        contract=changed(contract_named(contract or DEFAULT), terms or {}),
        data=str(data) if data is not None else None,
        load=load_settings(load, max_latency),
        idle_ms=parse_gaps(idle) if idle is not None else (),
    )
    job_of = partial(job_of, warmup_s=warmup, duration_s=duration, cpu_affinity=cpu_affinity)
    job_of = partial(job_of, layers=layers, memory=memory, nvtx=nvtx, cuda_profiler=cuda_profiler)
    runs = runs_on(Path(path), backend, trust)
    control = _allowed(runs, memory, cuda_profiler, cpu_affinity, lock_clocks, kernels=kernels)
    notes: list[str] = []
    wanted = resolve_engines(Path(path), batch, backend, notes, listener, trust, sizes)
    with wanted as resolved:
        measured = points(resolved.engines, batch)
        jobs = [_job(job_of, resolved, engine, size, sizes) for engine, size in measured]
        with _clocks(control, lock_clocks, notes):
            return _run(jobs, resolved, timeout, notes, listener, kernels=kernels, cold_start=cold_start)


def _allowed(
    name: str,
    memory: bool,
    cuda_profiler: bool,
    cpu_affinity: str | None,
    lock_clocks: int | bool,
    *,
    kernels: bool,
) -> ClockControl | None:
    """The clock control, if requested; refused before building if the backend's device has none."""
    check_device_options(
        name, memory=memory, cuda_profiler=cuda_profiler, cpu_affinity=cpu_affinity, kernels=kernels
    )
    return open_clock_control(name) if lock_clocks is not False else None


def _job(
    job_of: partial[BenchJob], resolved: ResolvedEngines, engine: EngineArtifact, size: int, sizes: Recipe
) -> BenchJob:
    return job_of(
        path=str((resolved.folder / engine.path).absolute()),
        artifact=engine,
        batch=size,
        shapes=shapes_at(resolved.inputs, engine.plan, size, shape_flags(sizes), sizes.axes),
    )


@contextmanager
def _clocks(control: ClockControl | None, requested: int | bool, notes: list[str]) -> Iterator[None]:
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
    limit_s: float | None,
    notes: list[str],
    listener: Listener,
    *,
    kernels: bool,
    cold_start: bool,
) -> BenchReport:
    """One job after the other: a device measures one thing at a time. The listener receives each report.

    Raises:
        TrtoptError: a job failed. The last report sent to the listener has all measurements, and
            says what failed.
    """
    listener.plans([f"batch{job.batch}" for job in jobs])
    created = now()
    report: BenchReport | None = None
    try:
        for index, result in run_jobs(jobs, limit_s=limit_s, on_progress=listener.progress):
            assert isinstance(result, Benched)
            point = result.point
            if cold_start and point.failure is None:
                starts = measure_cold_starts(jobs[index], index, limit_s, listener.progress)
                point = msgspec.structs.replace(point, cold_start=starts)
            if kernels and point.failure is None:
                traced = _recorded(jobs[index], limit_s, listener)
                point = msgspec.structs.replace(point, kernels=traced)
            if jobs[0].cpu_affinity is not None and report is None:
                notes.append(f"host threads on cores {listed(result.environment.cpus)}")
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
        if report is not None and len(report.points) < len(jobs) and report.points[-1].failure is None:
            failed = jobs[len(report.points)].batch
            note = f"batch {failed} could not be measured: {error.problem.splitlines()[0]}"
            listener.report(msgspec.structs.replace(report, notes=(*report.notes, note)))
        raise
    assert report is not None  # there is a job for every engine, and a build has one at least
    return report


def _recorded(job: BenchJob, limit_s: float | None, listener: Listener) -> KernelPass:
    """The kernels of a job's engine, recorded in another process than its latency was measured in."""
    ((_, result),) = run_jobs([KernelJob(bench=job)], limit_s=limit_s, on_progress=listener.progress)
    assert isinstance(result, KernelsRecorded)
    return result.kernels


def _check(
    path: Path,
    trust: Sequence[str],
    duration: float,
    warmup: float,
    timeout: float | None,
    data: str | Path | None,
    cpu_affinity: str | None,
    lock_clocks: int | bool,
    nvtx: bool,
) -> None:
    """Validate the options before anything is built."""
    if not 0 < duration <= 86400 or not 0 <= warmup <= 3600:
        raise UsageError(
            f"--duration {duration:g} --warmup {warmup:g}: out of range",
            "give seconds above 0, at most a day",
        )
    check_timeout(timeout)
    check_trust(trust, [path])
    if lock_clocks is not False and lock_clocks < 1:
        raise UsageError(f"--lock-clocks {lock_clocks}: not a clock in MHz", "write, say, --lock-clocks 1500")
    if cpu_affinity not in (None, AUTO):
        parse_cores(cpu_affinity)
    if data is not None:
        open_data(data)
    if nvtx:
        require_nvtx()
