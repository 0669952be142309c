"""The kernels of one engine: jobs of their own, so that the tracer is in no process that measures latency."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from trtopt.device.api import Session, Target
from trtopt.measure.engine import BenchJob, check_fits, subject_of
from trtopt.measure.engine_memory import vouched_engine
from trtopt.measure.loop.kernel_pass import record_kernels, record_ranges
from trtopt.measure.loop.run_pass import Subject
from trtopt.records import Job, KernelPass, TracedRun


class KernelJob(Job[KernelPass], frozen=True, kw_only=True, tag="kernels"):
    """A worker's job: record the kernels of what `bench` measures."""

    bench: BenchJob


class RangesJob(Job[tuple[TracedRun, ...]], frozen=True, kw_only=True, tag="ranges"):
    """A worker's job: record in which of its layers the engine launches each kernel.

    See `records.KernelPass.marked_runs`.
    """

    bench: BenchJob


def record_engine_kernels(target: Target, job: KernelJob) -> KernelPass:
    """Load the engine and record what it launches."""
    with _loaded(target, job.bench) as (session, subject):
        return record_kernels(target.device, session, subject, graph=job.bench.contract.graph)


def record_engine_ranges(target: Target, job: RangesJob) -> tuple[TracedRun, ...]:
    """Load the engine and record what it launches in plain runs, with its NVTX ranges."""
    with _loaded(target, job.bench) as (session, subject):
        return record_ranges(target.device, session, subject)


@contextmanager
def _loaded(target: Target, bench: BenchJob) -> Iterator[tuple[Session, Subject]]:
    check_fits(bench.artifact, target)
    engine = vouched_engine(target.device, Path(bench.path), bench.artifact, bench.shapes)
    with closing(target.load(engine)) as session:
        yield session, subject_of(session, bench)
