"""From measurements to a plan of how to serve, and from a plan into a model repository of Triton's."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from trtopt.errors import DeviceError, IncompatibleEngineError, UsageError
from trtopt.files.atomic import lock, write_atomically
from trtopt.files.manifests import is_build_folder, read_manifest, read_plan, read_verified
from trtopt.files.outputs import check_output, hashed_kind, json_kind, with_hash, write_output
from trtopt.records import BatchPlan, PlannedEngine, PlannedLoad, ServingCost, to_json
from trtopt.requests.serve import PlanRequest
from trtopt.serving.planning.plan_refinement import MOST_TRIALS, PlanRefinement
from trtopt.serving.planning.prediction import Demand
from trtopt.serving.planning.search import Bounds, Outcome
from trtopt.serving.planning.service_times import FREE, at_level
from trtopt.serving.planning.setups import MeasuredEngine
from trtopt.serving.planning.simulation import Arrivals
from trtopt.serving.planning.traffic import Recorded
from trtopt.serving.triton import check_successor, readme, triton_model
from trtopt.workflows.plan.sources import (
    Measured,
    RequestedArrivals,
    bounds_of,
    on_another_machine,
    read_arrivals,
    read_measured,
    shares_of,
)
from trtopt.workflows.plan.trials import Listener, serving_costs, trial_cost, trial_run
from trtopt.workflows.provenance import command_line, now


def plan(
    request: PlanRequest,
    listener: Listener = lambda text: None,
) -> BatchPlan:
    """Choose engines, workers, largest batch and delay, and write the plan to a file; see `trtopt.plan`."""
    sources, output = request.sources, Path(request.output)
    bounds = bounds_of(request)
    read = read_arrivals(request.arrivals)
    measured = read_measured([Path(source) for source in sources])
    shares = shares_of(measured, read.process, request.lengths or {})
    rate = request.rate
    if rate is None and isinstance(read.process, Recorded):
        rate = read.process.rate
    elsewhere = on_another_machine(measured)
    for note in elsewhere:
        listener(f"note: {note}")
    planner = _Planner(measured, bounds, read, request, listener)
    costs = planner.costs()
    listener(f"simulating ways to serve with {len(measured.engines)} engines")
    demand = Demand(read.process, rate or 1.0, shares)
    refinement = PlanRefinement(measured.engines, costs, bounds, planner.from_trials)
    refined = refinement.refine_rate(demand) if rate is None else refinement.refine_at_rate(demand)
    made = msgspec.structs.replace(
        planner.plan(output, refined.chosen, refined.demand),
        sources=tuple(map(str, sources)),
        rejected=refined.choice.rejected,
        notes=(*elsewhere, *measured.notes, *planner.notes, *_notes_on(measured)),
    )
    write_output(output, to_json(made), json_kind("trtopt.plan"))
    return made


def _notes_on(measured: Measured) -> list[str]:
    """What was not measured and would let more be planned."""
    if any(max(engine.levels) > 1 for engine in measured.engines):
        return []
    return [
        "one worker: nothing was measured with several streams; `trtopt sweep --streams 1,2` measures what a "
        "second one brings, which copies while the first computes"
    ]


@dataclass
class _Planner:
    """Measures what serving adds, and writes outcomes down as plans; `notes` is what a user should know."""

    measured: Measured
    bounds: Bounds
    read: RequestedArrivals
    request: PlanRequest
    listener: Listener
    notes: list[str] = field(default_factory=list)
    trial_s: list[float] = field(default_factory=list)
    """How long each trial run took."""
    full: Mapping[int, ServingCost] | None = None
    """What serving adds at full load, by number of workers; None if the engines cannot run here."""

    def costs(self) -> Mapping[int, ServingCost]:
        """What serving adds at full load, by number of workers; zero where unknown."""
        self.listener("measuring what serving adds to an engine")
        try:
            self.full = serving_costs(self.measured, self.request.timeout, self.request.trust)
        except (DeviceError, IncompatibleEngineError) as error:
            self.notes.append(
                "the serving overhead is unknown and taken as zero, and the plan had no trial run: "
                + error.summary
            )
            return {1: FREE}
        return self.full

    def from_trials(self, outcome: Outcome, demand: Demand) -> ServingCost | None:
        """What serving adds to a setup under its load, measured with a temporary plan."""
        if self.full is None:
            return None
        setup = outcome.setup
        self._announce(f"{setup.name} at {demand.rate:,.4g} requests/s")
        began = time.monotonic()
        capacity = setup.capacity(demand.shares_of(setup.fleet) or ())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder).resolve() / "plan.json"
            write_atomically(path, to_json(self.plan(path, outcome, demand)))
            try:
                limit_s, trust = self.request.timeout, self.request.trust
                done = trial_run(path, self.read.process, capacity, limit_s, trust)
            except (DeviceError, IncompatibleEngineError) as error:
                self.notes.append(f"{setup.name} had no trial run: {error.summary}")
                return None
        self.trial_s.append(time.monotonic() - began)
        if failed := sum(run.failed for _, run in done):
            count = sum(len(run.at_ms) for _, run in done)
            raise DeviceError(
                f"{failed} of {count} requests failed in the trial run of {setup.name}",
                "see whether the engines run at all: trtopt bench",
            )
        trials = [(Arrivals.of(job.at_s, job.bucket), run) for job, run in done]
        percentiles = (50.0, 99.0, self.bounds.goal.p)
        return trial_cost(at_level(self.full, setup.workers), setup, trials, percentiles)

    def _announce(self, trial: str) -> None:
        """Which trial run it is and, once one is done, how long the others take."""
        number = len(self.trial_s) + 1
        left = ""
        if self.trial_s:
            seconds = sum(self.trial_s) / len(self.trial_s) * (MOST_TRIALS - number + 1)
            left = f", at most {seconds:.0f} s left"
        self.listener(f"trial run {number} of at most {MOST_TRIALS}{left}: {trial}")

    def plan(self, output: Path, chosen: Outcome, demand: Demand) -> BatchPlan:
        """An outcome as a plan for `output`."""
        setup, measured = chosen.setup, self.measured
        return BatchPlan(
            created=now(),
            argv=command_line(),
            sources=(),
            environment=measured.environment,
            model_sha256=measured.model_sha256,
            goal=str(self.bounds.goal),
            load=PlannedLoad(
                rate=demand.rate,
                arrivals=self.read.name,
                file_sha256=self.read.sha256,
                shares=dict(self.request.lengths or {}),
            ),
            memory_limit_bytes=self.bounds.memory_bytes,
            max_engines=self.bounds.max_engines,
            engines=tuple(_plan_engine(engine, output, measured) for engine in setup.fleet.engines),
            buckets={
                length: shapes
                for length, shapes in sorted(measured.buckets.items())
                if length in setup.fleet.lengths
            },
            workers=setup.workers,
            policy=setup.policy,
            memory_bytes=setup.memory_bytes(),
            serving_cost=setup.cost,
            prediction=chosen.prediction,
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
        memory_bytes=engine.memory.first_bytes if engine.memory is not None else None,
    )


CONFIG = "config.pbtxt"
_IN_CONFIG, _IN_README = "# {}", "<!-- {} -->"
_CONFIG, _README = hashed_kind("a config", _IN_CONFIG), hashed_kind("a README", _IN_README)


def deploy_triton(path: str | Path, repository: str | Path, *, name: str | None = None) -> Path:
    """Write the plan at `path` into a model repository as the next version of the model `name`.

    Args:
        path: what `trtopt plan -o` wrote.
        repository: a folder, new or with models in it.
        name: of the model [default: the plan's file without its suffix].

    Returns:
        The folder of the new version.
    """
    path = Path(path)
    name = name if name is not None else path.stem
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise UsageError(f"--name {name!r}: not a model name", "give --name of letters, digits, _, - and .")
    plan = read_plan(path)
    model = triton_model(plan, name)
    content = read_verified(path.parent / model.engine.path, model.engine.sha256, "plan")
    build = (path.parent / model.engine.path).parent
    io = read_manifest(build).io if is_build_folder(build) else ()
    folder = Path(repository) / name
    with lock(folder):
        config = folder / CONFIG
        if config.is_file():
            check_successor(config.read_text("utf-8", errors="replace"), model.config, str(config))
        version = 1 + max((int(one.name) for one in folder.glob("*") if one.name.isdecimal()), default=0)
        if folder.is_dir():
            check_output(config, _CONFIG)
        write_atomically(folder / str(version) / model.file, content)
        readme_file = folder / "README.md"  # others' words in it stay
        if not readme_file.exists() or (readme_file.is_file() and _README.is_own(readme_file)):
            write_atomically(readme_file, with_hash(readme(plan, name, version, io), _IN_README))
        write_output(config, with_hash(model.config, _IN_CONFIG), _CONFIG)
    return folder / str(version)
