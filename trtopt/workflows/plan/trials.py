"""What serving adds to the latencies that engines were measured with, and a plan served on trial."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from trtopt.errors import ArtifactError, DeviceError, UsageError
from trtopt.executors.local import run_job
from trtopt.files.atomic import write_atomically
from trtopt.files.manifests import read_plan
from trtopt.measure.load.arrivals import parse_goal
from trtopt.records import BatchPlan, Served, ServingCost, Verification, to_json
from trtopt.serving.planning.prediction import RUNS, TrialError, beyond, held_up, latencies_ms
from trtopt.serving.planning.service_times import Curve, added_ms
from trtopt.serving.planning.setups import Setup
from trtopt.serving.planning.simulation import Arrivals, simulate
from trtopt.serving.planning.traffic import Process, arrivals_at, lengths_of
from trtopt.serving.trial_run import CostJob, TrialJob, TrialRun
from trtopt.workers.protocol import Costed, Tried
from trtopt.workflows.plan.sources import Measured, read_arrivals
from trtopt.workflows.provenance import now

_PARTS = 200
"""Of what scatters, half a percent each."""


def serving_costs(measured: Measured, limit_s: float | None, trust: Sequence[str]) -> dict[int, ServingCost]:
    """By number of workers, as many as engines were measured with, on one folder's engines.

    Workers share the interpreter and the host's memory: what one adds says little of two. At full load, in
    which nothing scatters.
    """
    engine = measured.engines[0]
    folder, length = measured.folders[engine.sha256], min(engine.curves)
    counts = sorted({1, *(many for one in measured.engines for many in one.levels)})
    curves = [
        curve
        for one in measured.engines
        if measured.folders[one.sha256] == folder
        for curve in one.curves.get(length, ())
    ]
    batches = {workers: found for workers in counts if (found := _comparable(curves, workers))}
    job = CostJob(
        path=str(folder.absolute()),
        backend=measured.artifacts[engine.sha256].plan.backend.name,
        sample=dict(measured.buckets[length]),
        requests={workers: tuple(found) for workers, found in batches.items()},
        trust=tuple(trust),
    )
    result = run_job(job, Costed, limit_s=limit_s)
    here, there = result.environment.device.name, measured.environment.device.name
    if here != there:
        raise UsageError(
            f"measured on {there}, and this machine has {here}: "
            "the serving overhead of one does not apply to the other",
            "sweep here again, into another folder; or plan where it was measured",
        )
    return {workers: _cost(result.full_ms[workers], found) for workers, found in batches.items()}


def _cost(serving_ms: Mapping[int, Sequence[float]], engine_ms: Mapping[int, float]) -> ServingCost:
    """What batches of these sizes take beyond what engines were measured to take."""
    added = [float(np.median(serving_ms[batch])) - ms for batch, ms in engine_ms.items()]
    return _line(list(engine_ms), added)


def trial_cost(
    full: ServingCost,
    setup: Setup,
    trials: Sequence[tuple[Arrivals, TrialRun]],
    percentiles: Sequence[float],
) -> ServingCost:
    """With what scattered in runs of the setup, beyond what its engines take and what is added at full load.

    A batch took that much longer, or shorter, on average: this goes into `batch_ms`, for capacities, too.
    What simulations of the same arrivals still miss at `percentiles`, such as stalls that hit several
    requests, becomes factors. A run that the machine delayed does not count.
    """
    cost = _with_scatter(full, setup, [run for _, run in trials])
    compared = [_trial_of(cost, setup, *one) for one in trials]
    if (found := held_up(compared, percentiles)) is not None:
        index, outlier = found
        others = [*trials[:index], *trials[index + 1 :]]
        return msgspec.structs.replace(trial_cost(full, setup, others, percentiles), held_up=outlier)
    return msgspec.structs.replace(
        cost,
        from_trials=sum(len(run.at_ms) for _, run in trials),
        beyond=beyond(compared, percentiles),
    )


def _with_scatter(full: ServingCost, setup: Setup, runs: Sequence[TrialRun]) -> ServingCost:
    longer_ms = [
        took.ms
        - setup.fleet.services[took.bucket].typical_ms(took.requests, took.running)
        - added_ms(full, took.requests)
        for run in runs
        for took in run.batches
    ]
    batch_ms = max(0.0, full.batch_ms + float(np.mean(longer_ms)))
    return msgspec.structs.replace(
        full,
        batch_ms=batch_ms,
        jitter_ms=evenly([ms - (batch_ms - full.batch_ms) for ms in longer_ms]),
        wake_ms=evenly([ms for run in runs for ms in run.wake_ms]),
        late_ms=evenly([ms for run in runs for ms in run.lag_ms]),
    )


def _trial_of(cost: ServingCost, setup: Setup, arrivals: Arrivals, run: TrialRun) -> TrialError:
    """What it took beside what simulations of its arrivals say with what serving adds."""
    services, workers, policy = setup.fleet.services, setup.workers, setup.policy
    return TrialError(
        np.array(
            [math.inf if done is None else done - at for at, done in zip(run.at_ms, run.done_ms, strict=True)]
        ),
        [latencies_ms(simulate(services, workers, policy, arrivals, seed, cost)) for seed in range(RUNS)],
    )


def evenly(values: Sequence[float]) -> tuple[float, ...]:
    """At most `_PARTS` values for all of them, in order: means of equal parts, so that theirs is the same."""
    parts = np.array_split(np.sort(np.asarray(values, np.float64)), min(_PARTS, len(values)) or 1)
    return tuple(round(float(part.mean()), 4) for part in parts if part.size)


def _comparable(curves: Sequence[Curve], workers: int) -> dict[int, float]:
    """Batches with their medians where so many run: the smallest, a middle one and the largest."""
    found = {
        batch: float(np.median(values))
        for curve in curves
        for batch, values in curve.samples_ms.get(workers, {}).items()
    }
    sizes = sorted(found)
    chosen = {sizes[at] for at in (0, len(sizes) // 2, -1)} if sizes else set()
    return {size: found[size] for size in sorted(chosen)}


def _line(batches: Sequence[int], added_ms: Sequence[float]) -> ServingCost:
    """The line of least squares through what was added, neither part of it below 0."""
    if len(batches) == 1:
        return ServingCost(request_ms=max(0.0, added_ms[0] / batches[0]))
    slope, start = (float(value) for value in np.polyfit(batches, added_ms, 1))
    if slope < 0:
        return ServingCost(batch_ms=max(0.0, float(np.mean(added_ms))))
    if start < 0:
        through_zero = float(np.dot(batches, added_ms) / np.dot(batches, batches))
        return ServingCost(request_ms=max(0.0, through_zero))
    return ServingCost(batch_ms=start, request_ms=slope)


_BEFORE_SEED, _VERIFYING_SEED, *_REHEARSING_SEEDS = range(RUNS + 1, RUNS + 7)
"""Arrivals that are drawn by these no prediction has seen, nor are two the same. Each of four rehearsals is a
process of its own: latencies differ from one to the next by more than within one.
"""

_SECONDS, _LEAST, _MOST = 2.0, 5, 25_000
"""How long a rehearsal sends requests on average, and how many there are at least and at most."""

_MOST_SECONDS = 8.0

_BEFORE_S = 0.5
"""How long requests are served before they count. In the first fifth of a second of a process they were
late ten times as often as later, at any rate (digits on ONNX Runtime), and decided what 99 of 100 keep.
"""

_RARE, _LITTLE = 70.0, 0.1
"""Requests a second, and a share of what workers can do: where fewer come, workers sleep as soundly at that
rate, and enough are seen for a 99th percentile.
"""

_VERIFIED_S = 20.0
"""At most, and half of the time that there is, unless a single run takes longer."""

Listener = Callable[[str], None]


def trial_run(
    path: Path, process: Process, capacity: float, limit_s: float | None, trust: Sequence[str]
) -> list[tuple[TrialJob, TrialRun]]:
    """Serve the load of the plan at `path`, of which workers can do `capacity` requests a second: four times.

    Each of them may take `limit_s`.
    """
    made = read_plan(path)
    rate = max(made.load.rate, min(_RARE, _LITTLE * capacity))
    count = int(min(_MOST, max(_LEAST, rate * _SECONDS)))
    done = []
    for seed in _REHEARSING_SEEDS:
        job = _trial(path, made, process, rate, count, seed, trust)
        within = max(_LEAST, bisect_right(job.at_s, _MOST_SECONDS))  # part of a record may be a quiet one
        job = msgspec.structs.replace(job, at_s=job.at_s[:within], bucket=job.bucket[:within])
        done.append((job, run_job(job, Tried, limit_s=limit_s).run))
    return done


def verify(
    path: str | Path,
    timeout: float | None = None,
    listener: Listener = lambda text: None,
    trust: Sequence[str] = (),
) -> BatchPlan:
    """Serve the plan's load with `trtopt.serving`, write what came of it into the plan, and return that.

    One, three or five runs one after the other, as many as 20 seconds allow, each of as many requests as were
    simulated, arriving by a seed that no simulation had. After `timeout` seconds that has failed, and the
    plan is as it was. `trust`: plugins that may be loaded.
    """
    path = Path(path)
    made = read_plan(path)
    read = read_arrivals(made.load.arrivals)
    if read.sha256 != made.load.file_sha256:
        raise ArtifactError(
            f"{made.load.arrivals}: is not the file of arrivals that was planned for", "plan again with it"
        )
    count, rate = made.prediction.requests, made.load.rate
    within_s = min(_VERIFIED_S, timeout / 2 if timeout is not None else math.inf)
    runs = next(many for many in (5, 3, 1) if many == 1 or many * count / rate <= within_s)
    job = _trial(path, made, read.process, rate, runs * count, _VERIFYING_SEED, trust)
    listener(f"serving {len(job.at_s):,} requests, {job.at_s[-1]:.0f} s")
    result = run_job(job, Tried, limit_s=timeout)
    made = msgspec.structs.replace(
        made, verification=verification_of(result, parse_goal(made.goal, "--slo").p, runs)
    )
    write_atomically(path, to_json(made))
    return made


def _trial(
    path: Path, made: BatchPlan, process: Process, rate: float, count: int, seed: int, trust: Sequence[str]
) -> TrialJob:
    """About so many requests, and before them half a second of Poisson arrivals at that rate."""
    at_s = arrivals_at(process, rate, count, seed)
    lengths = lengths_of(process, made.load.shares or {0: 1.0}, len(at_s), seed)
    buckets = sorted(made.buckets)
    return TrialJob(
        path=str(path.absolute()),
        backend=made.engines[0].artifact.plan.backend.name,
        buckets=tuple(made.buckets[length] for length in buckets),
        at_s=at_s.tolist(),
        bucket=np.searchsorted(buckets, lengths).tolist(),
        before_s=arrivals_at("poisson", rate, math.ceil(rate * _BEFORE_S), _BEFORE_SEED).tolist(),
        trust=tuple(trust),
    )


def verification_of(result: Tried, p: float, runs: int) -> Verification:
    """The results of the runs, for the percentile `p` too."""
    run: TrialRun = result.run
    each = runs_of(run, p, runs)
    return Verification(
        created=now(),
        environment=result.environment,
        seed=_VERIFYING_SEED,
        requests=len(run.at_ms),
        answered=sum(done is not None for done in run.done_ms),
        rejected=run.rejected,
        failed=run.failed,
        runs=each,
        typical=Served(
            **{
                name: float(np.median([getattr(one, name) for one in each]))
                for name in Served.__struct_fields__
            }
        ),
        total=runs_of(run, p, 1)[0],
        batch_sizes=dict(sorted(Counter(took.requests for took in run.batches).items())),
    )


def runs_of(run: TrialRun, p: float, count: int) -> tuple[Served, ...]:
    """A trial in so many parts of equal length, in the order of arrival; without those that got no answer."""
    at_ms, lag_ms = np.asarray(run.at_ms), np.asarray(run.lag_ms)
    done_ms = np.array([np.nan if done is None else done for done in run.done_ms])
    served = []
    for part in np.array_split(np.arange(len(at_ms)), count):
        answered = part[np.isfinite(done_ms[part])]
        if not answered.size:
            continue
        p50, p99, goal = np.percentile(done_ms[answered] - at_ms[answered], [50, 99, p]).tolist()
        took_s = (done_ms[answered].max() - at_ms[part[0]]) / 1e3
        served.append(
            Served(
                p50_ms=p50,
                p99_ms=p99,
                goal_ms=goal,
                throughput=float(answered.size / took_s),
                lag_p99_ms=float(np.percentile(lag_ms[part], 99)),
            )
        )
    if not served:
        raise DeviceError("no request of the trial was answered", "see whether the engines run: trtopt bench")
    return tuple(served)
