"""Worker processes on this host."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from trtopt.device.cuda.probe import gpu
from trtopt.errors import TrtoptError
from trtopt.executors.api import Executor, run_jobs_of, shares_a_host
from trtopt.records import Job
from trtopt.records.base import JobResult
from trtopt.targets import ONNXRUNTIME
from trtopt.workers.supervisor import OnProgress, run_all_jobs


@dataclass(frozen=True)
class LocalExecutor:
    """Builds in each of the places (see `device.backends.places_to_build`), measures one at a time.

    `backend` names what measures; empty where the caller knows that it can.
    """

    places: tuple[str | None, ...] = (None,)
    backend: str = ""
    has_many_hosts: bool = False
    at_once: int = 1

    def cancel(self) -> None:
        """See `Executor.cancel`: there is only one thread, which closes what it reads."""

    def require_measuring(self) -> None:
        """See `Executor.require_measuring`: but for ONNX Runtime it takes a GPU, which builds may not."""
        if self.backend not in ("", ONNXRUNTIME):
            gpu(0)

    def run_all_jobs(
        self, jobs: Sequence[Job[JobResult]], *, limit_s: float | None = None, on_progress: OnProgress
    ) -> Generator[tuple[int, JobResult | TrtoptError]]:
        """See `Executor.run_all_jobs`."""
        places = self.places if all(map(shares_a_host, jobs)) else self.places[:1]
        return run_all_jobs(jobs, places=places, limit_s=limit_s, on_progress=on_progress)


THIS_HOST = LocalExecutor()


def run_job(
    job: Job[JobResult],
    executor: Executor = THIS_HOST,
    *,
    limit_s: float | None = None,
    on_progress: OnProgress = lambda index, phase, fraction: None,
) -> JobResult:
    """Run one job; raises its error, its death, or that its time is up."""
    ((_, result),) = run_jobs_of(executor, [job], limit_s=limit_s, on_progress=on_progress)
    return result
