"""What serving adds to the latencies that engines were measured with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from trtopt.errors import UsageError
from trtopt.executors.local import run_job
from trtopt.records import ServingCost
from trtopt.serving.planning.prediction import RUNS, TrialError, beyond, held_up, latencies_ms
from trtopt.serving.planning.service_times import Curve, added_ms
from trtopt.serving.planning.setups import Setup
from trtopt.serving.planning.simulation import Arrivals, simulate
from trtopt.serving.trial_run import CostJob, TrialRun
from trtopt.workers.protocol import Costed
from trtopt.workflows.plan.measured_engines import Measured

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
    cost = _scattered(full, setup, [run for _, run in trials])
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


def _scattered(full: ServingCost, setup: Setup, runs: Sequence[TrialRun]) -> ServingCost:
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
