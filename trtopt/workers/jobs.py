"""The types of jobs, in one table: what runs each, and how it is reported when its process dies."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Generic, TypeVar

from trtopt.builder.engine import BuildJob, build_engine
from trtopt.builder.timing_cache import identity_of
from trtopt.data import names_function
from trtopt.data.source import SamplesJob, write_samples
from trtopt.device.api import ProgressSink, Target
from trtopt.device.backends import open_builder, open_target
from trtopt.device.cuda.cupti import have_nvtx_inject_cupti
from trtopt.device.nvtx import NvtxMarks
from trtopt.device.ort.host import cpu_name, present_cores
from trtopt.device.tensorrt.capability import ParseJob, parse
from trtopt.errors import BuildError, DataError, DeviceError, TrtoptError
from trtopt.measure.engine import (
    BenchJob,
    BenchResult,
    ColdStartJob,
    DescribeJob,
    EngineDescription,
    KernelJob,
    LoadedEngine,
    OutputsJob,
    RangesJob,
    StartResult,
    bench_engine,
    describe,
    loaded,
    start_engine,
    write_outputs,
)
from trtopt.measure.loop.interleaved import InterleaveJob, interleave
from trtopt.measure.loop.profiling_passes import copy_bandwidth, record_kernels, record_ranges
from trtopt.records import EngineArtifact, Environment, Identity, InterleavedRun, Job, KernelPass, TracedRun
from trtopt.serving.trial_run import CostJob, CostResult, TrialJob, TrialResult, serving_times, try_plan
from trtopt.targets import DISPLAYED, ONNXRUNTIME
from trtopt.version import __version__


class CopyJob(Job[float], frozen=True, kw_only=True, tag="copy"):
    """A worker's job: measure how fast `backend`'s device copies `nbytes` within its memory.

    Its result is in bytes a second, read and written together.
    """

    backend: str
    nbytes: int


class IdentifyJob(Job[Identity], frozen=True, kw_only=True, tag="identify"):
    """The job of a worker that says what `backend` would build for and measure on here."""

    backend: str


def environment_of(target: Target) -> Environment:
    """Where a measurement is being taken."""
    return Environment(
        device=target.device.info,
        backend=target.backend,
        trtopt=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=cpu_name(),
        git_revision=git_revision(),
        cpus=present_cores(),
    )


def git_revision() -> str | None:
    """The revision of the folder that trtopt was started in, if it is a git checkout."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


AnyJob = TypeVar("AnyJob", bound=Job[Any])


@dataclass(frozen=True, kw_only=True)
class JobType(Generic[AnyJob]):
    """All that both ends of a worker need to know about one type of job."""

    run: Callable[[AnyJob, ProgressSink], Any]
    """Does it, in the worker; returns what the job says comes of it."""
    doing: Callable[[AnyJob], str]
    """What is being done, in words."""
    native_code: Callable[[Any], list[str]] = lambda job: _native_code(job)
    """Whose native code it runs, in words: libraries, plugins, and what the user's own function calls."""
    error: type[TrtoptError] = DeviceError
    """What its death is."""
    time_option: str = "--timeout"
    """The option that bounds its time."""
    is_fresh: bool = False
    """Whether what its process begins with is a part of what it measures."""
    log: Callable[[AnyJob], Path | None] = lambda job: None
    """The file that native code logs to."""


JOBS: dict[type, JobType[Any]] = {}
_Run = TypeVar("_Run", bound=Callable[..., Any])


def type_of(job: Job[Any]) -> JobType[Any]:
    """The entry of a job's type."""
    return JOBS[type(job)]


def runs(kind: type[AnyJob], doing: Callable[[AnyJob], str], **more: Any) -> Callable[[_Run], _Run]:
    """Enter what runs jobs of a kind in the table; `doing` and `more` are fields of `JobType`."""

    def enter(run: _Run) -> _Run:
        JOBS[kind] = JobType(run=run, doing=doing, **more)
        return run

    return enter


def engines_of(job: Job[Any]) -> Sequence[LoadedEngine]:
    """What a job runs."""
    job = measured_by(job)
    if isinstance(job, InterleaveJob):
        return job.engines
    return [job.engine] if isinstance(job, BenchJob | OutputsJob) else []


def measured_by(job: Any) -> Any:
    """The measurement that a job looks into by other means; else the job."""
    return job.bench if isinstance(job, KernelJob | RangesJob | ColdStartJob) else job


def _native_code(job: Any) -> list[str]:
    engines = engines_of(job)
    plans = [job.plan] if isinstance(job, BuildJob) else [engine.artifact.plan for engine in engines]
    backends = [plan.backend.name for plan in plans] or [job.backend]
    libraries = [DISPLAYED.get(backend, backend) for backend in backends]
    drivers = ["its driver"] if set(backends) - {ONNXRUNTIME} else []
    plugins = [f"the plugin {plugin.path}" for plan in plans for plugin in plan.settings.plugins]
    data = measured_by(job).data if engines else None
    own = [f"what {data} calls"] if data is not None and names_function(data) else []
    cupti = ["CUPTI"] if isinstance(job, KernelJob | RangesJob) else []
    return list(dict.fromkeys([*libraries, *drivers, *plugins, *own, *cupti]))


# ── what runs them ──────────────────────────────────────────────────────────────────────────────────────


def _running(job: Any) -> str:
    return f"running {job.engine.artifact.path}"


def _open(job: Job[Any]) -> AbstractContextManager[Target]:
    """What runs a job's engines, with their plugins."""
    plans = [engine.artifact.plan for engine in engines_of(job)]
    plugins = {plugin.sha256: plugin for plan in plans for plugin in plan.settings.plugins}
    return closing(open_target(plans[0].backend.name, tuple(plugins.values())))


@runs(
    BuildJob,
    lambda job: f"building {job.plan.label}",
    error=BuildError,
    time_option="--build-timeout",
    log=lambda job: Path(job.folder, f"{job.plan.label}.log"),
)
def _build(job: BuildJob, progress: ProgressSink) -> EngineArtifact:
    return build_engine(open_builder(job.plan.backend.name), job, progress)


@runs(DescribeJob, lambda job: f"running {job.path}")
def _describe(job: DescribeJob, _progress: ProgressSink) -> EngineDescription:
    with closing(open_target(job.backend)) as target:
        return describe(target, job)


@runs(BenchJob, _running)
def _bench(job: BenchJob, progress: ProgressSink) -> BenchResult:
    with _open(job) as target:
        target.device.profilers = NvtxMarks(nvtx=job.nvtx, cuda_profiler=job.cuda_profiler)
        return BenchResult(point=bench_engine(target, job, progress), environment=environment_of(target))


@runs(KernelJob, lambda job: f"recording the kernels of {job.bench.engine.artifact.path}")
def _record_kernels(job: KernelJob, progress: ProgressSink) -> KernelPass:
    with _open(job) as target:
        progress("kernels", None)
        with loaded(target, job.bench) as subject:
            return record_kernels(subject, graph=job.bench.contract.graph)


@runs(RangesJob, lambda job: f"recording the NVTX ranges of {job.bench.engine.artifact.path}")
def _record_ranges(job: RangesJob, progress: ProgressSink) -> tuple[TracedRun, ...]:
    have_nvtx_inject_cupti()
    with _open(job) as target:
        progress("layers of kernels", None)
        with loaded(target, job.bench) as subject:
            return record_ranges(subject)


@runs(ColdStartJob, lambda job: f"starting {job.bench.engine.artifact.path}", is_fresh=True)
def _start_engine(job: ColdStartJob, _progress: ProgressSink) -> StartResult:
    plan = job.bench.engine.artifact.plan
    return start_engine(job, lambda: open_target(plan.backend.name, plan.settings.plugins))


@runs(InterleaveJob, lambda job: f"running {', '.join(dict.fromkeys(one.path for one in job.engines))}")
def _interleave(job: InterleaveJob, progress: ProgressSink) -> InterleavedRun:
    with _open(job) as target:
        return interleave(target, job, environment_of(target), progress)


@runs(OutputsJob, _running)
def _write_outputs(job: OutputsJob, progress: ProgressSink) -> int:
    with _open(job) as target:
        return write_outputs(target, job, progress)


@runs(CopyJob, lambda job: f"running a copy of {job.nbytes / 2**20:.0f} MiB")
def _copy(job: CopyJob, _progress: ProgressSink) -> float:
    with closing(open_target(job.backend)) as target:
        return copy_bandwidth(target.device, job.nbytes)


@runs(IdentifyJob, lambda job: f"opening {job.backend}")
def _identify(job: IdentifyJob, _progress: ProgressSink) -> Identity:
    builder = open_builder(job.backend)
    return identity_of(builder.backend, builder.device)


@runs(TrialJob, lambda job: f"running requests on {job.path}")
def _try_plan(job: TrialJob, progress: ProgressSink) -> TrialResult:
    return TrialResult(run=try_plan(job, progress), environment=_environment(job.backend))


@runs(CostJob, lambda job: f"running requests on {job.path}")
def _measure_costs(job: CostJob, progress: ProgressSink) -> CostResult:
    return CostResult(full_ms=serving_times(job, progress), environment=_environment(job.backend))


def _environment(backend: str) -> Environment:
    with closing(open_target(backend)) as target:
        return environment_of(target)


runs(ParseJob, lambda job: f"parsing {job.path}")(parse)
runs(
    SamplesJob,
    lambda job: f"reading the samples of {job.data}",
    native_code=lambda job: [f"what {job.data} calls"],
    error=DataError,
    time_option="--budget",
)(write_samples)

ANY_JOB: Any = reduce(or_, JOBS)
"""A job of any of these types."""
