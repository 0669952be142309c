"""A worker process: runs one job and reports on a pipe.

    main() of this module, LEVEL      one job as a JSON line on standard input, messages as JSON lines on
                                      standard output; whatever native code prints goes to standard error

What is logged from LEVEL on, a number of Python's `logging`, is among the messages.

Native code can crash, hang or leave the CUDA context unusable: here it takes only its own job along. The
worker ends when its standard input closes, so it never outlives the process that started it.
"""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from typing import BinaryIO, NoReturn

import msgspec

from trtopt.builder.engine import BuildJob, build_engine
from trtopt.device.affinity import confine, present_cores
from trtopt.device.api import ProgressSink, Target
from trtopt.device.backends import open_builder, open_target
from trtopt.device.nvtx import NvtxMarks
from trtopt.device.ort.host import cpu_name
from trtopt.errors import TrtoptError
from trtopt.logs import relay
from trtopt.measure.bandwidth import copy_bandwidth
from trtopt.measure.describe_engine import Described, DescribeJob, describe
from trtopt.measure.engine import bench_engine
from trtopt.measure.loop.interleaved import InterleaveJob, interleave
from trtopt.measure.outputs import OutputsJob, write_outputs
from trtopt.processes import end_with_parent
from trtopt.records import Environment, to_json
from trtopt.serving.trial_run import CostJob, TrialJob, serving_times, try_plan
from trtopt.version import __version__
from trtopt.workers.protocol import (
    Benched,
    Built,
    Copied,
    CopyJob,
    Costed,
    Failure,
    Interleaved,
    Job,
    Merged,
    MergeJob,
    Message,
    OutputsWritten,
    Progress,
    Result,
    TacticsJob,
    TacticsTold,
    Tried,
)


def run(job: Job, send: Callable[[Message], None]) -> Result:
    """Run one job in this process; progress goes to `send`."""

    def progress(phase: str, fraction: float | None) -> None:
        send(Progress(phase=phase, fraction=fraction))

    if isinstance(job, BuildJob):
        builder = open_builder(job.plan.backend.name, NvtxMarks(nvtx=job.nvtx), follow_memory=job.memory)
        return Built(engine=build_engine(builder, job, progress))
    if isinstance(job, DescribeJob):
        return _described(job)
    if isinstance(job, OutputsJob):
        return _outputs(job, progress)
    if isinstance(job, InterleaveJob):
        return _interleaved(job, progress)
    if isinstance(job, CopyJob):
        return _copied(job)
    if isinstance(job, TrialJob):
        return Tried(run=try_plan(job, progress), environment=_environment(job.backend))
    if isinstance(job, CostJob):
        return Costed(full_ms=serving_times(job, progress), environment=_environment(job.backend))
    if isinstance(job, MergeJob):
        return Merged(blob=open_builder(job.backend).merge_timing_caches(job.ours, job.theirs))
    if isinstance(job, TacticsJob):
        return TacticsTold(tactics=tuple(map(open_builder(job.backend).tactics, job.caches)))
    plan = job.artifact.plan
    marks = NvtxMarks(nvtx=job.nvtx, cuda_profiler=job.cuda_profiler)
    target = open_target(plan.backend.name, plan.settings.plugins, marks)
    try:
        if job.cpu_affinity is not None:
            confine(job.cpu_affinity, target.device.info)
        point = bench_engine(target, job, progress)
        return Benched(point=point, environment=environment_of(target))
    finally:
        target.close()


def _described(job: DescribeJob) -> Described:
    target = open_target(job.backend)
    try:
        return describe(target, job)
    finally:
        target.close()


def _outputs(job: OutputsJob, progress: ProgressSink) -> OutputsWritten:
    plan = job.artifact.plan
    target = open_target(plan.backend.name, plan.settings.plugins)
    try:
        return OutputsWritten(batches=write_outputs(target, job, progress))
    finally:
        target.close()


def _copied(job: CopyJob) -> Copied:
    target = open_target(job.backend)
    try:
        return Copied(bytes_per_s=copy_bandwidth(target.device, job.nbytes))
    finally:
        target.close()


def _interleaved(job: InterleaveJob, progress: ProgressSink) -> Interleaved:
    plans = [engine.artifact.plan for engine in job.engines]
    plugins = {plugin.sha256: plugin for plan in plans for plugin in plan.settings.plugins}
    target = open_target(plans[0].backend.name, tuple(plugins.values()))
    try:
        return Interleaved(run=interleave(target, job, environment_of(target), progress))
    finally:
        target.close()


def environment_of(target: Target) -> Environment:
    """Where a measurement is being taken."""
    return Environment(
        device=target.device.info,
        backend=target.backend,
        trtopt=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=cpu_name(),
        git_revision=_git_revision(),
        cpus=present_cores(),
    )


def _environment(backend: str) -> Environment:
    target = open_target(backend)
    try:
        return environment_of(target)
    finally:
        target.close()


def _git_revision() -> str | None:
    """The revision of the folder that trtopt was started in, if it is a git checkout."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def main() -> None:
    """Read a job, run it, report."""
    messages = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # native code prints to descriptor 1
    line = sys.stdin.buffer.readline()
    end_with_parent()
    send = sender(messages)
    relay(int(sys.argv[1]), send)
    gc.freeze()  # garbage is collected before each pass: not among what has been imported, which stays
    try:
        send(run(msgspec.json.decode(line, type=Job), send))
    except TrtoptError as error:
        send(Failure(error=type(error).__name__, problem=error.problem, remedy=error.remedy))
    except MemoryError:
        send(
            Failure(error="DeviceError", problem="out of host memory", remedy="use a smaller batch or model")
        )
    except BaseException:  # noqa: BLE001  (a fault of ours: the supervisor shows its last words)
        traceback.print_exc()
        _leave(1)
    _leave(0)


def sender(pipe: BinaryIO) -> Callable[[Message], None]:
    """What writes messages to a pipe, each whole, for any thread and for what logs in the midst of it.

    Garbage is collected whenever Python likes, and native code logs when its objects are destroyed.
    """
    guard = threading.RLock()

    def send(message: Message) -> None:
        with guard:
            _write(pipe, to_json(message, indent=None))

    return send


def _leave(status: int) -> NoReturn:
    """Without the interpreter's teardown: native libraries can crash in it, and a thread waits for input."""
    sys.stderr.flush()
    os._exit(status)


def _write(pipe: BinaryIO, line: bytes) -> None:
    view = memoryview(line)
    while view:
        view = view[pipe.write(view) :]
