"""What is sent to a worker process and what comes back: one JSON line each."""

from __future__ import annotations

from trtopt.builder.engine import BuildJob
from trtopt.measure.engine import BenchJob
from trtopt.measure.interleaved import InterleaveJob
from trtopt.measure.outputs import OutputsJob
from trtopt.records import BenchPoint, EngineArtifact, Environment, InterleavedRun, Record

Job = BuildJob | BenchJob | InterleaveJob | OutputsJob


class Progress(Record, frozen=True, kw_only=True, tag="progress"):
    """How far a job has come; `fraction` is None where nobody knows."""

    phase: str
    fraction: float | None


class Failure(Record, frozen=True, kw_only=True, tag="failure"):
    """A `TrtoptError` by the name of its class."""

    error: str
    problem: str
    remedy: str


class Built(Record, frozen=True, kw_only=True, tag="built"):
    """A build job's result."""

    engine: EngineArtifact


class Benched(Record, frozen=True, kw_only=True, tag="benched"):
    """A bench job's result."""

    point: BenchPoint
    environment: Environment


class Interleaved(Record, frozen=True, kw_only=True, tag="interleaved"):
    """An interleave job's result."""

    run: InterleavedRun


class OutputsWritten(Record, frozen=True, kw_only=True, tag="outputs_written"):
    """An outputs job's result: how many batches there are files for."""

    batches: int


Result = Built | Benched | Interleaved | OutputsWritten
Message = Progress | Failure | Built | Benched | Interleaved | OutputsWritten
