"""From measurements to a plan of how to serve, and the plan put to the test."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from trtopt.errors import ArtifactError, DeviceError, UsageError
from trtopt.jobs import Tried
from trtopt.measure.arrivals import parse_goal
from trtopt.pipeline.build import command_line, now
from trtopt.pipeline.listener import SILENT
from trtopt.pipeline.measured_engines import Measured, read_measured
from trtopt.pipeline.serving_costs import serving_costs
from trtopt.plan.packing import packing_estimate
from trtopt.plan.prediction import RUNS, Demand
from trtopt.plan.search import MAX_ENGINES, Bounds, Outcome, Search, nothing_keeps
from trtopt.plan.service import at_level
from trtopt.plan.setups import MeasuredEngine
from trtopt.plan.traffic import Process, Recorded, arrivals_at, lengths_of, parse_process, parse_recorded
from trtopt.reading import read_bounded, reason_of
from trtopt.recipe import check_timeout
from trtopt.records import (
    BatchPlan,
    PlannedEngine,
    PlannedLoad,
    Rejected,
    ServingCost,
    Verification,
    to_json,
)
from trtopt.runtime.trial import TrialJob, TrialRun
from trtopt.supervisor import run_jobs
from trtopt.workspace import read_plan, write_atomically

_VERIFYING_SEED = RUNS + 1
"""Arrivals that no prediction has seen."""

Listener = Callable[[str], None]


@dataclass(frozen=True)
class _Arrivals:
    process: Process
    name: str
    sha256: str | None = None


def plan(
    sources: Sequence[str | Path],
    output: str | Path,
    *,
    slo: str,
    rate: float | None = None,
    arrivals: str = "poisson",
    lengths: Mapping[int, float] | None = None,
    memory_bytes: int | None = None,
    max_engines: int = 3,
    for_triton: bool = False,
    timeout: float | None = None,
    trust: Sequence[str] = (),
    listener: Listener = lambda text: None,
) -> BatchPlan:
    """Choose engines, workers, largest batch and delay, and write the plan to `output`.

    Args:
        sources: folders of `trtopt sweep`, or build folders with what `trtopt bench` told as `bench.json`.
        slo: a percentile of latency, waiting included, and its limit: `p99=10ms`.
        rate: requests a second; by default that of recorded arrivals, else the highest that keeps the SLO.
        arrivals: `poisson`, `constant`, `bursty`, `bursty:PEAK:SECONDS`, or a file of arrivals.
        lengths: share of requests by their length, for a model swept over lengths.
        memory_bytes, max_engines: bounds; `for_triton`: what Triton can batch for.
        timeout: seconds that measuring what serving adds may take; `trust`: plugins that it may load.

    Raises:
        PlanError: nothing keeps the bounds; it says which bound costs what.
        TrtoptError: with what is wrong and what to do.
    """
    bounds = Bounds(parse_goal(slo, "--slo"), memory_bytes, max_engines, for_triton)
    _check(bounds, rate, timeout)
    read = _arrivals(arrivals)
    measured = read_measured([Path(source) for source in sources])
    shares = _shares(measured, read.process, lengths or {})
    if rate is None and isinstance(read.process, Recorded):
        rate = read.process.rate
    listener("measuring what serving adds to an engine")
    costs, notes = serving_costs(measured, rate, timeout, trust)
    notes += _notes_on(measured)
    search = Search(measured.engines, costs)
    listener(f"simulating ways to serve with {len(measured.engines)} engines")
    demand = Demand(read.process, rate or 1.0, shares)
    if rate is None:
        highest = search.highest_rate(demand, bounds)
        found = highest[1] if highest is not None else search.best(demand, bounds)
        demand = demand.at(highest[0]) if highest is not None else demand
    else:
        found = search.best(demand, bounds)
    if found.chosen is None:
        raise nothing_keeps(search, demand, bounds, found, rate_asked=rate is not None)
    load = PlannedLoad(
        rate=demand.rate, arrivals=read.name, file_sha256=read.sha256, shares=dict(lengths or {})
    )
    made = _plan(Path(output), measured, found.chosen, found.rejected, load, demand, bounds, costs)
    made = msgspec.structs.replace(made, sources=tuple(map(str, sources)), notes=(*measured.notes, *notes))
    write_atomically(Path(output), to_json(made))
    return made


def _check(bounds: Bounds, rate: float | None, timeout: float | None) -> None:
    """Judge what can be judged before anything is read."""
    if not 1 <= bounds.max_engines <= MAX_ENGINES:
        raise UsageError(f"--max-engines {bounds.max_engines}: out of range", f"give 1 to {MAX_ENGINES}")
    if bounds.memory_bytes is not None and bounds.memory_bytes < 1:
        raise UsageError(
            f"--memory {bounds.memory_bytes}: an engine needs some", "give a bound like 8GiB, or leave it out"
        )
    if rate is not None and not 0 < rate < float("inf"):
        raise UsageError(f"--rate {rate:g}: is no rate", "give requests a second above 0")
    check_timeout(timeout)


def _arrivals(text: str) -> _Arrivals:
    path = Path(text)
    if not path.is_file():
        return _Arrivals(parse_process(text), text)
    try:
        content = read_bounded(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot be read as arrivals: {reason_of(error)}", "give another file"
        ) from None
    recorded = parse_recorded(content.decode(errors="replace"), text)
    return _Arrivals(recorded, text, hashlib.sha256(content).hexdigest())


def _shares(measured: Measured, process: Process, lengths: Mapping[int, float]) -> dict[int, float]:
    """The share of requests by length; a model without lengths has the one length 0.

    Raises:
        UsageError: lengths for a model without, or none for one with lengths.
    """
    has_lengths = set(measured.buckets) != {0}
    told = bool(lengths) or (isinstance(process, Recorded) and bool(process.lengths))
    if has_lengths and not told:
        raise UsageError(
            f"the sweep has lengths {', '.join(map(str, sorted(measured.buckets)))}, and nobody says "
            "how long requests are",
            "say it as --lengths 128:0.7,384:0.3, or in a file of arrivals with a length for each",
        )
    if not has_lengths and told:
        raise UsageError(
            "requests have lengths, and the sweep has none", "sweep with --shapes, or leave them out"
        )
    return dict(lengths) if has_lengths else {0: 1.0}


def _notes_on(measured: Measured) -> list[str]:
    """What was not measured and would let more be planned."""
    if any(max(engine.levels) > 1 for engine in measured.engines):
        return []
    return [
        "one worker: nothing was measured with several streams; `trtopt sweep --streams 1,2` tells what a "
        "second one brings, which copies while the first computes"
    ]


def _plan(
    output: Path,
    measured: Measured,
    chosen: Outcome,
    rejected: Sequence[Rejected],
    load: PlannedLoad,
    demand: Demand,
    bounds: Bounds,
    costs: Mapping[int, ServingCost],
) -> BatchPlan:
    setup = chosen.setup
    return BatchPlan(
        created=now(),
        argv=command_line(),
        sources=(),
        environment=measured.environment,
        model_sha256=measured.model_sha256,
        goal=str(bounds.goal),
        load=load,
        memory_limit_bytes=bounds.memory_bytes,
        max_engines=bounds.max_engines,
        engines=tuple(_planned(engine, output, measured) for engine in setup.fleet.engines),
        buckets={
            length: shapes
            for length, shapes in sorted(measured.buckets.items())
            if length in setup.fleet.lengths
        },
        workers=setup.workers,
        policy=setup.policy,
        memory_bytes=setup.memory_bytes(),
        serving_cost=at_level(costs, setup.workers),
        prediction=chosen.prediction,
        packing=packing_estimate(setup, demand) if set(measured.buckets) != {0} else None,
        rejected=tuple(rejected),
    )


def _planned(engine: MeasuredEngine, output: Path, measured: Measured) -> PlannedEngine:
    artifact = measured.artifacts[engine.sha256]
    file = measured.folders[engine.sha256] / artifact.path
    path = os.path.relpath(file.absolute(), output.absolute().parent)
    longest = engine.curves[max(engine.curves)]
    return PlannedEngine(
        artifact=msgspec.structs.replace(artifact, path=path),
        precision=engine.family,
        latency_ms=tuple(told for curve in longest for told in curve.offer.latency_ms),
        memory_bytes=engine.memory.first_bytes if engine.memory is not None else None,
    )


# ── the plan put to the test ────────────────────────────────────────────────────────────────────────────


def verify(
    path: str | Path,
    timeout: float | None = None,
    listener: Listener = lambda text: None,
    trust: Sequence[str] = (),
) -> BatchPlan:
    """Serve the plan's load with `trtopt.runtime`, write what came of it into the plan, and return that.

    As many requests as were simulated, arriving by a seed that no simulation had. After `timeout` seconds
    that has failed, and the plan is as it was. `trust`: plugins that may be loaded.

    Raises:
        ArtifactError: no plan, an engine that is missing or another one, or arrivals that have changed.
        DeviceError: the engines cannot run here, or the time was up.
    """
    check_timeout(timeout)
    path = Path(path)
    made = read_plan(path)
    job = msgspec.structs.replace(_trial(path, made), trust=tuple(trust))
    listener(f"serving {len(job.at_s):,} requests, {job.at_s[-1]:.0f} s")
    ((_, result),) = run_jobs([job], limit_s=timeout, on_progress=SILENT.progress)
    assert isinstance(result, Tried)
    verification = _verification(result, parse_goal(made.goal, "--slo").p)
    made = msgspec.structs.replace(made, verification=verification)
    write_atomically(path, to_json(made))
    return made


def _trial(path: Path, made: BatchPlan) -> TrialJob:
    read = _arrivals(made.load.arrivals)
    if read.sha256 != made.load.file_sha256:
        raise ArtifactError(
            f"{made.load.arrivals}: is not the file of arrivals that was planned for", "plan again with it"
        )
    count = made.prediction.requests
    at_s = arrivals_at(read.process, made.load.rate, count, _VERIFYING_SEED)
    lengths = lengths_of(read.process, made.load.shares or {0: 1.0}, len(at_s), _VERIFYING_SEED)
    buckets = sorted(made.buckets)
    return TrialJob(
        path=str(path.absolute()),
        backend=made.engines[0].artifact.plan.backend.name,
        buckets=tuple(made.buckets[length] for length in buckets),
        at_s=at_s.tolist(),
        bucket=np.searchsorted(buckets, lengths).tolist(),
    )


def _verification(result: Tried, p: float) -> Verification:
    run: TrialRun = result.run
    answered = [
        (done - at, done) for at, done in zip(run.at_ms, run.done_ms, strict=True) if done is not None
    ]
    if len(answered) <= run.failed:
        raise DeviceError("no request of the trial was answered", "see whether the engines run: trtopt bench")
    latency = [ms for ms, _ in answered]
    p50, p99, goal = (float(value) for value in np.percentile(latency, [50, 99, p]))
    return Verification(
        created=now(),
        environment=result.environment,
        seed=_VERIFYING_SEED,
        requests=len(run.at_ms),
        answered=len(answered) - run.failed,
        rejected=run.rejected,
        failed=run.failed,
        p50_ms=p50,
        p99_ms=p99,
        goal_ms=goal,
        throughput=1e3 * len(answered) / max(done for _, done in answered),
        lag_p99_ms=float(np.percentile(run.lag_ms, 99)),
        batch_sizes=run.statistics.batch_sizes,
    )
