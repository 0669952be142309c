"""What runs jobs, wherever that is: worker processes on this host, or a cluster's."""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from trtopt.builder.engine import BuildJob
from trtopt.errors import TrtoptError
from trtopt.measure.engine import OutputsJob
from trtopt.processes import DONE, OnProgress
from trtopt.records import Job
from trtopt.records.base import JobResult
from trtopt.workers.jobs import IdentifyJob
from trtopt.workers.worker import Event, Progress, Worker

Done = TypeVar("Done")


class Executor(Protocol):
    """Runs jobs in worker processes, here or on other hosts.

    Results, errors and the files in the user's folders are the same wherever a job ran.
    """

    @property
    def at_once(self) -> int:
        """How many threads' jobs run at the same time; 1: only one thread may submit jobs."""

    def cancel(self) -> None:
        """End what other threads have submitted: each of them gets a `CancelledError`."""

    def run_all_jobs(
        self, jobs: Sequence[Job[JobResult]], *, limit_s: float | None = None, on_progress: OnProgress
    ) -> Generator[tuple[int, JobResult | TrtoptError]]:
        """Run all jobs, whatever becomes of each; yields (index, result or error) as they finish.

        Closing the generator cancels what is not done.
        """


def shares_a_host(job: Job[Any]) -> bool:
    """Whether a job may run while others do on its host; a measurement may not."""
    return isinstance(job, BuildJob | IdentifyJob | OutputsJob)


@dataclass(frozen=True)
class LocalExecutor:
    """Builds in each of the places (see `device.backends.places_to_build`), measures one at a time."""

    places: tuple[str | None, ...] = (None,)
    at_once: int = 1

    def cancel(self) -> None:
        """See `Executor.cancel`: there is only one thread, which closes what it reads."""

    def run_all_jobs(
        self, jobs: Sequence[Job[JobResult]], *, limit_s: float | None = None, on_progress: OnProgress
    ) -> Generator[tuple[int, JobResult | TrtoptError]]:
        """See `Executor.run_all_jobs`."""
        places = self.places if all(map(shares_a_host, jobs)) else self.places[:1]
        events: queue.Queue[tuple[int, Event]] = queue.Queue()
        waiting, free = list(enumerate(jobs))[::-1], list(places)[::-1]
        running: dict[int, Worker] = {}
        try:
            while waiting or running:
                while waiting and free:
                    index, job = waiting.pop()
                    running[index] = Worker(index, job, free.pop(), limit_s, events)
                    on_progress(index, running[index].phase, None)
                index, event = events.get()
                worker = running[index]
                if isinstance(event, Progress):
                    worker.enter(event.phase)
                    on_progress(index, event.phase, event.fraction)
                    continue
                outcome = worker.outcome(event)
                worker.stop()
                free.append(running.pop(index).place)
                on_progress(index, DONE, 1.0)
                yield index, outcome
        finally:
            for worker in running.values():
                worker.stop()


THIS_HOST = LocalExecutor()


def run_jobs_of(
    executor: Executor,
    jobs: Sequence[Job[JobResult]],
    *,
    limit_s: float | None = None,
    on_progress: OnProgress,
) -> Generator[tuple[int, JobResult]]:
    """Run jobs; yields (index, result) as they finish. The first failure ends it, and is raised."""
    outcomes = executor.run_all_jobs(jobs, limit_s=limit_s, on_progress=on_progress)
    with closing(outcomes):
        for index, outcome in outcomes:
            if isinstance(outcome, TrtoptError):
                raise outcome
            yield index, outcome


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


def run_in_threads(executor: Executor, works: Sequence[Callable[[], Done]]) -> list[Done]:
    """What works come to, as many done at a time as the executor takes; an error of one ends the others."""
    if executor.at_once == 1 or len(works) == 1:
        return [work() for work in works]
    with ThreadPoolExecutor(min(len(works), executor.at_once), thread_name_prefix="jobs") as threads:
        running = [threads.submit(work) for work in works]
        try:
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            for one in done:
                one.result()
            return [one.result() for one in running]
        except BaseException:  # Ctrl-C too: the block's end waits for all threads
            executor.cancel()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
