"""What a worker process sends back, one message each, and the jobs that only workers know."""

from __future__ import annotations

from typing import Any, Generic

from trtopt.errors import TrtoptError, rebuild
from trtopt.logs import Logged
from trtopt.records import Identity, Job, Record
from trtopt.records.base import JobResult


class CopyJob(Job[float], frozen=True, kw_only=True, tag="copy"):
    """A worker's job: measure how fast `backend`'s device copies `nbytes` within its memory.

    Its result is in bytes a second, read and written together.
    """

    backend: str
    nbytes: int


class IdentifyJob(Job[Identity], frozen=True, kw_only=True, tag="identify"):
    """The job of a worker that says what `backend` would build for and measure on here."""

    backend: str


class Progress(Record, frozen=True, kw_only=True, tag="progress"):
    """How far a job has come; `fraction` is None where it is unknown."""

    phase: str
    fraction: float | None


class Failure(Record, frozen=True, kw_only=True, tag="failure"):
    """A `TrtoptError` by the name of its class."""

    name: str
    problem: str
    remedy: str

    @classmethod
    def of(cls, error: TrtoptError) -> Failure:
        """An error as it travels."""
        return cls(name=type(error).__name__, problem=error.problem, remedy=error.remedy)

    @property
    def error(self) -> TrtoptError:
        """The error again."""
        return rebuild(self.name, self.problem, self.remedy)


class Done(Record, Generic[JobResult], frozen=True, kw_only=True, tag="done"):
    """What came of a job."""

    result: JobResult


Ending = Done[Any] | Failure
Message = Progress | Logged | Ending


def ending_of(job: Job[Any]) -> Any:
    """The type of how a job ends."""
    return Done[job.result_type()] | Failure  # type: ignore[misc]
