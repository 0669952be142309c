"""What a worker process sends back, one JSON line each, and the jobs that only workers know."""

from __future__ import annotations

from trtopt.logs import Logged
from trtopt.measure.cold_start import ColdStarted
from trtopt.measure.describe_engine import Described
from trtopt.measure.engine_kernels import KernelsRecorded, RangesRecorded
from trtopt.records import BenchPoint, EngineArtifact, Environment, Identity, InterleavedRun, Record
from trtopt.serving.trial_run import TrialRun


class CopyJob(Record, frozen=True, kw_only=True, tag="copy"):
    """A worker's job: measure how fast `backend`'s device copies `nbytes` within its memory."""

    backend: str
    nbytes: int


class IdentifyJob(Record, frozen=True, kw_only=True, tag="identify"):
    """The job of a worker that says what `backend` would build for and measure on here."""

    backend: str


class Progress(Record, frozen=True, kw_only=True, tag="progress"):
    """How far a job has come; `fraction` is None where it is unknown."""

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


class SamplesWritten(Record, frozen=True, kw_only=True, tag="samples_written"):
    """A samples job's result: how many files there are."""

    batches: int


class Copied(Record, frozen=True, kw_only=True, tag="copied"):
    """A copy job's result: bytes read and written together, a second."""

    bytes_per_s: float


class Identified(Record, frozen=True, kw_only=True, tag="identified"):
    """An identify job's result."""

    identity: Identity


class Tried(Record, frozen=True, kw_only=True, tag="tried"):
    """A trial job's result."""

    run: TrialRun
    environment: Environment


class Costed(Record, frozen=True, kw_only=True, tag="costed"):
    """A cost job's result, by number of workers: what full batches took in ms, by their requests."""

    full_ms: dict[int, dict[int, list[float]]]
    environment: Environment


Result = (
    Built
    | Described
    | Benched
    | ColdStarted
    | KernelsRecorded
    | RangesRecorded
    | Interleaved
    | OutputsWritten
    | SamplesWritten
    | Copied
    | Identified
    | Tried
    | Costed
)
Event = Progress | Failure | Result
"""What decides how things go on."""

Message = Event | Logged
