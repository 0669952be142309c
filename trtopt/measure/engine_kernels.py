"""The kernels of one engine: a job of its own, so that the tracer is in no process that measures latency."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from trtopt.device.api import ProgressSink, Target
from trtopt.measure.engine import BenchJob, check_fits, subject_of
from trtopt.measure.engine_memory import vouched_engine
from trtopt.measure.loop.kernel_pass import record_kernels
from trtopt.records import KernelPass, Record


class KernelJob(Record, frozen=True, kw_only=True, tag="kernels"):
    """A worker's job: record the kernels of what `bench` measures."""

    bench: BenchJob


class KernelsRecorded(Record, frozen=True, kw_only=True, tag="kernels_recorded"):
    """A kernel job's result."""

    kernels: KernelPass


def record_engine_kernels(target: Target, job: KernelJob, progress: ProgressSink) -> KernelPass:
    """Load the engine and record what it launches.

    Raises:
        TrtoptError: see `bench_engine` and `record_kernels`.
    """
    bench = job.bench
    check_fits(bench.artifact, target)
    engine = vouched_engine(target.device, Path(bench.path), bench.artifact, bench.shapes)
    with closing(target.load(engine)) as session:
        progress("kernels", None)
        return record_kernels(target.device, session, subject_of(session, bench), graph=bench.contract.graph)
