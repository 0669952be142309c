"""Requests at planned times to a batcher, and what serving adds to an engine: the plan put to the test."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtopt.data.random_inputs import random_batch
from trtopt.device.api import ProgressSink
from trtopt.errors import QueueFullError, TrtoptError
from trtopt.records import BatchPolicy, Environment, Job, Record, Shape
from trtopt.serving.batcher import DynamicBatcher, serve_promptly, wake_on_time
from trtopt.serving.pool import EnginePool
from trtopt.serving.pool_worker import Outputs

Sample = dict[str, NDArray[np.generic]]

_ROUNDS, _BATCHES = 10, 8
_WARM_ROUNDS = 4


class TrialRun(Record, frozen=True, kw_only=True):
    """What became of a trial's requests, in milliseconds from its begin, in the order of arrival.

    `done_ms` is None where there was no answer; `lag_ms` is how late a request was handed over.
    """

    at_ms: list[float]
    done_ms: list[float | None]
    lag_ms: list[float]
    rejected: int
    failed: int


class TrialResult(Record, frozen=True, kw_only=True):
    """A trial job's result."""

    run: TrialRun
    environment: Environment


class TrialJob(Job[TrialResult], frozen=True, kw_only=True, tag="trial"):
    """Serve the plan at `path` requests that arrive at `at_s`, each of the bucket of that index.

    Before them others are served that arrive at `before_s`, and not reported. `trust`: plugins that may be
    loaded.
    """

    path: str
    backend: str
    buckets: tuple[dict[str, Shape], ...]
    at_s: list[float]
    bucket: list[int]
    before_s: list[float]
    trust: tuple[str, ...] = ()


class CostResult(Record, frozen=True, kw_only=True):
    """A cost job's result, by number of workers: what full batches took in ms, by their requests."""

    full_ms: dict[int, dict[int, list[float]]]
    environment: Environment


class CostJob(Job[CostResult], frozen=True, kw_only=True, tag="cost"):
    """Serve so many `requests` of one shape as one batch, with each number of workers, on the build folder at
    `path`.
    """

    path: str
    backend: str
    sample: dict[str, Shape]
    requests: dict[int, tuple[int, ...]]
    trust: tuple[str, ...] = ()


def try_plan(job: TrialJob, progress: ProgressSink) -> TrialRun:
    """Send the requests when they are due, however busy the workers are, and wait for all answers."""
    with EnginePool.open(Path(job.path), trust=job.trust) as pool:
        samples = [_sample(pool, shapes) for shapes in job.buckets]
        with DynamicBatcher(pool) as batcher:
            _warm(pool, range(1, batcher.policy.max_batch + 1), samples)
            serve_promptly()  # as a service should
            return _served(batcher, samples, job, progress)


def serving_times(job: CostJob, progress: ProgressSink) -> dict[int, dict[int, list[float]]]:
    """By number of workers: what full batches take a worker, all being busy, by requests."""
    serve_promptly()
    full_ms: dict[int, dict[int, list[float]]] = {}
    for workers, counts in job.requests.items():
        full_ms[workers] = times = {}
        with EnginePool.open(Path(job.path), workers=workers, trust=job.trust) as pool:
            sample = _sample(pool, job.sample)
            for count in counts:
                progress(f"serving {count} requests", None)
                _warm(pool, [count], [sample])
                # As long as they are not all there, nothing runs.
                with DynamicBatcher(pool, BatchPolicy(max_batch=count, max_delay_ms=1e6)) as batcher:
                    times[count] = [_full_batch_ms(batcher, sample, count, workers) for _ in range(_ROUNDS)]
    return full_ms


def _full_batch_ms(batcher: DynamicBatcher, sample: Sample, count: int, workers: int) -> float:
    """Of several, the next being submitted while others are computed: submitting takes time, too."""
    waiting = deque(batcher.submit(sample) for _ in range(count))
    start_s = time.perf_counter()
    for _ in range((_BATCHES * workers - 1) * count):
        waiting.append(batcher.submit(sample))
        if len(waiting) == (workers + 1) * count:
            waiting.popleft().result()
    for future in waiting:
        future.result()
    return (time.perf_counter() - start_s) * 1e3 / _BATCHES


def _sample(pool: EnginePool, shapes: Mapping[str, Shape]) -> Sample:
    batch = random_batch(pool.catalogue.inputs, {name: (1, *shape) for name, shape in shapes.items()})
    return {name: array[0] for name, array in batch.items()}


def _warm(pool: EnginePool, counts: Sequence[int], samples: Sequence[Sample]) -> None:
    """These numbers of requests of every bucket, by as many threads as there are workers, at the same time:
    contexts are made at the first run and graphs captured at the second.
    """
    together = threading.Barrier(pool.workers)

    def run() -> None:
        for sample in samples:
            part = pool.catalogue.sample(sample)
            for count in counts:
                for _ in range(_WARM_ROUNDS):
                    together.wait()
                    pool.run_parts([part] * count)

    with ThreadPoolExecutor(pool.workers) as threads:
        for done in [threads.submit(run) for _ in range(pool.workers)]:
            done.result()


def on_schedule(at_s: Sequence[float], begin_s: float) -> Iterator[float]:
    """For each time after `begin_s` (`time.perf_counter`'s), once it has come: how many ms late it is by now.

    Asleep until then, and some 30 µs longer: a thread that spins keeps the interpreter from the others.
    """
    wake_on_time()
    for due_s in at_s:
        while (left_s := begin_s + due_s - time.perf_counter()) > 0:
            time.sleep(left_s)
        yield (time.perf_counter() - begin_s - due_s) * 1e3


def _served(
    batcher: DynamicBatcher, samples: Sequence[Sample], job: TrialJob, progress: ProgressSink
) -> TrialRun:
    _serve_before(batcher, samples, job)
    done_s: list[float | None] = [None] * len(job.at_s)
    lag_ms: list[float] = []
    failures: list[BaseException] = []
    rejected = 0
    progress(f"{len(job.at_s):,} requests", None)
    begin_s = time.perf_counter() + 0.01

    def note(index: int, done: Future[Outputs]) -> None:
        failure = done.exception()
        if failure is None:
            done_s[index] = time.perf_counter()
        else:
            failures.append(failure)

    for index, late_ms in enumerate(on_schedule(job.at_s, begin_s)):
        lag_ms.append(late_ms)
        try:
            future = batcher.submit(samples[job.bucket[index]])
        except QueueFullError:
            rejected += 1
            continue
        future.add_done_callback(partial(note, index))
        # Gone once it is answered, as in a service: what is kept is gone through by Python's collector
        del future
    batcher.close()
    for failure in failures:
        if not isinstance(failure, TrtoptError):
            raise failure
    return TrialRun(
        at_ms=[at_s * 1e3 for at_s in job.at_s],
        done_ms=[(end_s - begin_s) * 1e3 if end_s is not None else None for end_s in done_s],
        lag_ms=lag_ms,
        rejected=rejected,
        failed=len(failures),
    )


def _serve_before(batcher: DynamicBatcher, samples: Sequence[Sample], job: TrialJob) -> None:
    """Serve the unreported requests. Failures are ignored: they recur among the reported ones."""
    waiting: deque[Future[Outputs]] = deque()
    for index, _ in enumerate(on_schedule(job.before_s, time.perf_counter())):
        with suppress(QueueFullError):
            waiting.append(batcher.submit(samples[job.bucket[index % len(job.bucket)]]))
        while waiting and waiting[0].done():  # answers are kept no longer than in a service
            waiting.popleft()
    wait(waiting)
