"""From measurements to a plan of how to serve."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from trtopt.errors import DeviceError, IncompatibleEngineError, PlanError, UsageError
from trtopt.executors.api import run_job
from trtopt.files.atomic import write_atomically
from trtopt.files.outputs import json_kind, write_output
from trtopt.measure.load.arrivals import parse_goal
from trtopt.records import BatchPlan, PlannedEngine, PlannedLoad, Served, ServingCost, Verification, to_json
from trtopt.requests.serve import PlanRequest
from trtopt.serving.planning.search import RUNS, Bounds, Demand, Outcome, Search, nothing_keeps
from trtopt.serving.planning.setups import NO_COST, Costs, Curve, MeasuredEngine, Setup
from trtopt.serving.planning.simulation import Process, Recorded, arrivals_at, lengths_of
from trtopt.serving.trial_run import CostJob, TrialJob, TrialResult, TrialRun
from trtopt.serving.triton import check_backend
from trtopt.workflows.plan.sources import Measured, read_arrivals, read_measured, shares_of
from trtopt.workflows.provenance import command_line, now

PLAN = json_kind("trtopt.plan")


def plan(request: PlanRequest) -> BatchPlan:
    """Choose engines, workers, largest batch and delay by simulation, and write the plan to a file.

    Returns:
        The plan, with the latency and throughput that the simulation predicts.

    Raises:
        PlanError: no setup meets all bounds; it says which bound costs what.

    Example:
        >>> made = trtopt.plan(["swept"], "plan.json", slo="p99=500ms", rate=200.0)
        >>> made.goal
        'p99=500ms'
    """
    output = Path(request.output)
    goal = parse_goal(request.slo, "--slo")
    bounds = Bounds(goal, request.memory_bytes, request.max_engines, request.for_triton)
    process, file_sha256 = read_arrivals(request.arrivals)
    measured = read_measured([Path(source) for source in request.sources])
    if request.for_triton:
        check_backend(measured.environment.backend)
    shares = shares_of(measured, process, request.lengths or {})
    rate = request.rate
    if rate is None and isinstance(process, Recorded):
        rate = process.rate
    notes = [*measured.notes]
    request.listener.note("measuring what serving adds to an engine")
    try:
        costs: Costs = serving_costs(measured, request.timeout, request.trust)
    except (DeviceError, IncompatibleEngineError) as error:
        costs = NO_COST
        notes.append(f"the serving overhead is unknown and taken as zero: {error.summary}")
    request.listener.note(f"simulating ways to serve with {len(measured.engines)} engines")
    chosen, demand = _choose(
        Search(measured.engines, costs), Demand(process, rate or 1.0, shares), bounds, rate is None
    )
    setup = chosen.setup
    made = BatchPlan(
        created=now(),
        argv=command_line(),
        sources=tuple(map(str, request.sources)),
        environment=measured.environment,
        model_sha256=measured.model_sha256,
        goal=str(bounds.goal),
        load=PlannedLoad(
            rate=demand.rate,
            arrivals=request.arrivals,
            file_sha256=file_sha256,
            shares=dict(request.lengths or {}),
        ),
        engines=tuple(_plan_engine(engine, output, measured) for engine in setup.fleet.engines),
        buckets={length: measured.buckets[length] for length in setup.fleet.lengths},
        workers=setup.workers,
        policy=setup.policy,
        memory_bytes=setup.memory_bytes(),
        serving_cost=setup.cost,
        prediction=chosen.prediction,
        notes=(*notes, *_notes(measured, request, setup)),
    )
    write_output(output, to_json(made), PLAN)
    if request.verify:
        found = verify(made, output, process, request)
        made = msgspec.structs.replace(made, verification=found)
        write_atomically(output, to_json(made))
    return made


def _choose(search: Search, demand: Demand, bounds: Bounds, wants_rate: bool) -> tuple[Outcome, Demand]:
    """The setup that keeps the bounds under the demand, or at the highest rate at which one does."""
    if wants_rate and (highest := search.highest_rate(demand, bounds)) is not None:
        demand, found = demand.at(highest[0]), highest[1]
    else:
        found = search.best(demand, bounds)
    if found.chosen is None:
        raise nothing_keeps(search, demand, bounds, found, not wants_rate)
    return found.chosen, demand


def _notes(measured: Measured, request: PlanRequest, setup: Setup) -> Iterator[str]:
    """What would let more be planned, and what Triton will serve instead."""
    if all(max(engine.levels) == 1 for engine in measured.engines):
        yield (
            "one worker: nothing was measured with several streams; `trtopt sweep --streams 1,2` measures "
            "what a second one brings, which copies while the first computes"
        )
    engines = setup.fleet.engines
    is_served = len(engines) == 1 and (engines[0].is_dynamic or engines[0].largest == 1)
    if request.for_triton and not is_served:
        yield (
            "`trtopt deploy triton` builds one engine for all batch sizes, with an optimisation profile for "
            "each of these engines; the prediction is of these"
        )


def _plan_engine(engine: MeasuredEngine, output: Path, measured: Measured) -> PlannedEngine:
    artifact = measured.artifacts[engine.sha256]
    file = measured.folders[engine.sha256] / artifact.path
    # links would lead elsewhere from where they point to
    path = os.path.relpath(file.parent.resolve() / file.name, output.parent.resolve())
    longest = engine.curves[max(engine.curves)]
    return PlannedEngine(
        artifact=msgspec.structs.replace(artifact, path=path),
        precision=engine.family,
        latency_ms=tuple(pair for curve in longest for pair in curve.offer.latency_ms),
    )


# ── what serving adds, and a plan served once to verify it ──────────────────────────────────────────────


def serving_costs(measured: Measured, limit_s: float | None, trust: Sequence[str]) -> dict[int, ServingCost]:
    """By number of workers, as many as engines were measured with, on one folder's engines.

    Workers share the interpreter and the host's memory: what one adds says little of two. At full load.
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
    result = run_job(job, limit_s=limit_s)
    here, there = result.environment.device.name, measured.environment.device.name
    if here != there:
        raise UsageError(
            f"measured on {there}, and this machine has {here}: "
            "the serving overhead of one does not apply to the other",
            "sweep here again, into another folder; or plan where it was measured",
        )
    return {
        workers: _line(
            list(found),
            [float(np.median(result.full_ms[workers][batch])) - ms for batch, ms in found.items()],
        )
        for workers, found in batches.items()
    }


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


_BEFORE_SEED, _VERIFYING_SEED = RUNS + 1, RUNS + 2
"""Arrivals that are drawn by these no prediction has seen."""

_BEFORE_S = 0.5
"""How long requests are served before they count. In the first fifth of a second of a process they were
late ten times as often as later, at any rate (digits on ONNX Runtime), and decided what 99 of 100 keep.
"""

_VERIFIED_S = 20.0
"""At most, and half of the time that there is, unless a single run takes longer."""


def verify(made: BatchPlan, path: Path, process: Process, request: PlanRequest) -> Verification:
    """Serve the load of the plan, which lies at `path`, with `trtopt.serving`.

    One, three or five runs one after the other, as many as 20 seconds allow, each of as many requests as were
    simulated, arriving by a seed that no simulation had. After the request's timeout that has failed.
    """
    count, rate, timeout = made.prediction.requests, made.load.rate, request.timeout
    within_s = min(_VERIFIED_S, timeout / 2 if timeout is not None else math.inf)
    runs = next(many for many in (5, 3, 1) if many == 1 or many * count / rate <= within_s)
    at_s = arrivals_at(process, rate, runs * count, _VERIFYING_SEED)
    lengths = lengths_of(process, made.load.shares or {0: 1.0}, len(at_s), _VERIFYING_SEED)
    buckets = sorted(made.buckets)
    job = TrialJob(
        path=str(path.absolute()),
        backend=made.engines[0].artifact.plan.backend.name,
        buckets=tuple(made.buckets[length] for length in buckets),
        at_s=at_s.tolist(),
        bucket=np.searchsorted(buckets, lengths).tolist(),
        before_s=arrivals_at("poisson", rate, math.ceil(rate * _BEFORE_S), _BEFORE_SEED).tolist(),
        trust=tuple(request.trust),
    )
    request.listener.note(f"serving {len(at_s):,} requests, {at_s[-1]:.0f} s")
    return verification_of(run_job(job, limit_s=timeout), parse_goal(made.goal, "--slo").p, runs)


def require_goal(made: BatchPlan) -> None:
    """Raises PlanError if the plan was served and missed its goal: in the median of the runs."""
    goal, done = parse_goal(made.goal, "--slo"), made.verification
    if done is None:
        return
    lost = done.requests - done.answered
    if lost > done.requests * (1 - goal.p / 100):
        came_to = f"{lost:,} of {done.requests:,} requests got no answer"
    elif done.typical.goal_ms > goal.limit_ms:
        came_to = f"p{goal.p:g} was {done.typical.goal_ms:.3g} ms"
    else:
        return
    raise PlanError(
        f"the plan missed {goal} when it was served at {made.load.rate:,.4g} requests/s: {came_to}",
        f"plan again when the machine is quiet, or with a lower rate, as --rate {0.8 * made.load.rate:.3g}",
    )


def verification_of(result: TrialResult, p: float, runs: int) -> Verification:
    """The results of the runs, for the percentile `p` too."""
    run: TrialRun = result.run
    return Verification(
        environment=result.environment,
        requests=len(run.at_ms),
        answered=sum(done is not None for done in run.done_ms),
        rejected=run.rejected,
        failed=run.failed,
        runs=runs_of(run, p, runs),
        total=runs_of(run, p, 1)[0],
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
