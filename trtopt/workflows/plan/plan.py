"""From measurements to a plan of how to serve."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from trtopt.errors import DeviceError, IncompatibleEngineError
from trtopt.files.atomic import write_atomically
from trtopt.files.outputs import json_kind, write_output
from trtopt.records import BatchPlan, PlannedEngine, PlannedLoad, to_json
from trtopt.requests.serve import PlanRequest
from trtopt.serving.planning.search import Bounds, Demand, Outcome, Search, nothing_keeps
from trtopt.serving.planning.setups import NO_COST, Costs, MeasuredEngine, Setup
from trtopt.serving.planning.simulation import Recorded
from trtopt.serving.triton import check_backend
from trtopt.workflows.plan.sources import (
    Measured,
    bounds_of,
    read_arrivals,
    read_measured,
    shares_of,
)
from trtopt.workflows.plan.trials import Note, serving_costs, verify
from trtopt.workflows.provenance import command_line, now

PLAN = json_kind("trtopt.plan")


def plan(request: PlanRequest, note: Note = lambda text: None) -> BatchPlan:
    """Choose engines, workers, largest batch and delay, and write the plan to a file; see `trtopt.plan`."""
    output = Path(request.output)
    bounds = bounds_of(request)
    process, file_sha256 = read_arrivals(request.arrivals)
    measured = read_measured([Path(source) for source in request.sources])
    if request.for_triton:
        check_backend(measured.environment.backend)
    shares = shares_of(measured, process, request.lengths or {})
    rate = request.rate
    if rate is None and isinstance(process, Recorded):
        rate = process.rate
    notes = [*measured.notes]
    note("measuring what serving adds to an engine")
    try:
        costs: Costs = serving_costs(measured, request.timeout, request.trust)
    except (DeviceError, IncompatibleEngineError) as error:
        costs = NO_COST
        notes.append(f"the serving overhead is unknown and taken as zero: {error.summary}")
    note(f"simulating ways to serve with {len(measured.engines)} engines")
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
        notes=(*notes, *_notes_on(measured), *_notes_on_triton(request, setup)),
    )
    write_output(output, to_json(made), PLAN)
    if request.verify:
        found = verify(made, output, process, request, note)
        made = msgspec.structs.replace(made, verification=found)
        write_atomically(output, to_json(made))
    return made


def _choose(search: Search, demand: Demand, bounds: Bounds, wants_rate: bool) -> tuple[Outcome, Demand]:
    """The setup that keeps the bounds under the demand, or at the highest rate at which one does.

    Raises:
        PlanError: there is none.
    """
    if not wants_rate:
        found = search.best(demand, bounds)
    elif (highest := search.highest_rate(demand, bounds)) is not None:
        demand, found = demand.at(highest[0]), highest[1]
    else:
        found = search.best(demand, bounds)
    if found.chosen is None:
        raise nothing_keeps(search, demand, bounds, found, not wants_rate)
    return found.chosen, demand


def _notes_on(measured: Measured) -> list[str]:
    """What was not measured and would let more be planned."""
    if any(max(engine.levels) > 1 for engine in measured.engines):
        return []
    return [
        "one worker: nothing was measured with several streams; `trtopt sweep --streams 1,2` measures what a "
        "second one brings, which copies while the first computes"
    ]


def _notes_on_triton(request: PlanRequest, setup: Setup) -> list[str]:
    engines = setup.fleet.engines
    is_served = len(engines) == 1 and (engines[0].is_dynamic or engines[0].largest == 1)
    if not request.for_triton or is_served:
        return []
    return [
        "`trtopt deploy triton` builds one engine for all batch sizes, with an optimisation profile for each "
        "of these engines; the prediction is of these"
    ]


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
