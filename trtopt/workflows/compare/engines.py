"""Engines in turns: two or folders of them, one against itself, and several builds of recipes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from trtopt.device.backends import choose_for_running, open_builder
from trtopt.executors.api import Executor
from trtopt.files.atomic import scratch_folder
from trtopt.files.manifests import read_manifest
from trtopt.measure.analysis.outcomes import (
    Comparisons,
    ControlRow,
    Row,
    Work,
    paired_sizes,
    require_alike,
    unlike_work,
)
from trtopt.measure.engine import LoadedEngine
from trtopt.measure.loop.interleaved import (
    InterleaveJob,
    latency_blocks,
    ms_by_load,
    notes_of,
    pooled_ms,
    valid_rounds,
)
from trtopt.measure.statistics.builds import Control, compare_builds, noise_of_controls, run_spread, spread
from trtopt.measure.statistics.comparison import compare
from trtopt.recipe import batch_sizes
from trtopt.records import InterleavedRun
from trtopt.requests.measure import CompareRequest
from trtopt.requests.recipe import recipe_of
from trtopt.workflows.bench.resolve_engines import check_trust, engines_at, points, resolve_engines
from trtopt.workflows.build.folder import verified_graphs
from trtopt.workflows.compare.upgrade import built_graphs, upgrade_of
from trtopt.workflows.race import (
    Setting,
    compare_turns,
    heat,
    keep_run_spread,
    race,
    short_turns,
    terms_shown,
    work_of,
)
from trtopt.workflows.workbench import Workbench, open_executor

_LONGER = 4
"""So many times the samples halve an interval."""
_Build = dict[int, LoadedEngine]
"""The engines of a build by batch size."""
_Side = list[_Build]
"""One recipe's builds."""
TURNS_LIMIT = 0.02
"""The slowdown that a comparison in turns must rule out, unless --fail-on is given."""


def compare_engines(request: CompareRequest, setting: Setting) -> Comparisons:
    """Judge B's engines against A's at every batch size, A and B in turns in one process.

    With `control` A is also measured against itself, as many times, each in a process of its own; what that
    finds is allowed for in the verdict on B. Without B there is only that.
    """
    paths, again = _paths(request), request.control or 0
    check_trust(request.trust, paths)
    notes: list[str] = []
    graphs = [built_graphs(path, request) for path in paths] if request.upgrade else []
    with ExitStack() as resources:
        sides, works = list[_Build](), list[Work]()
        for path in paths:
            found = resources.enter_context(resolve_engines(path, request, notes))
            sides.append({engine.batch: engine for engine in found.engines})
            works.append(work_of(found.source_sha256, sides[-1]))
        sizes = paired_sizes(sides[0], sides[-1])
        notes += require_alike(unlike_work(works[0], works[-1]), force=request.force)
        heats, rounds = list[InterleaveJob](), short_turns(setting.duration)
        for size in sizes:
            if len(sides) == 2:
                both, label = [side[size] for side in sides], f"batch{size}: A and B"
                heats.append(heat(label, both, ("A", "B"), "comparison", setting, rounds))
            for index in range(again):
                twice, label = [sides[0][size]] * 2, f"batch{size}: A and A, {index + 1} of {again}"
                heats.append(heat(label, twice, ("A", "A again"), "control", setting, rounds))
        runs = race(heats, request.listener, setting.timeout)
        is_whole = all(run.failure is None for run in runs)
        upgrade = upgrade_of(graphs, sides, request, notes) if graphs and is_whole else None
    notes += notes_of(runs)
    notes += _keep_spread(runs)
    rows, controls = evaluate_turns(runs, request.threshold)
    return Comparisons(
        a=paths[0].name,
        b=paths[-1].name,
        device=terms_shown(runs),
        threshold=request.threshold,
        limit=request.fail_on or TURNS_LIMIT,
        rows=tuple(rows),
        controls=tuple(controls),
        notes=tuple(dict.fromkeys(notes)),
        again=f"sample for longer: --duration {_LONGER * setting.duration:g}",
        upgrade=upgrade,
        runs=tuple(runs),
    )


def _paths(request: CompareRequest) -> list[Path]:
    """A, and B if there is one."""
    return [Path(path) for path in (request.a, request.b) if path is not None]


def evaluate_turns(runs: Sequence[InterleavedRun], threshold: float) -> tuple[list[Row], list[ControlRow]]:
    """The verdicts on runs in turns, by batch size, and what their controls came to."""
    rows: list[Row] = []
    controls: list[ControlRow] = []
    for size in sorted({run.batch for run in runs}):
        own = [run for run in runs if run.batch == size]
        control_runs = [run for run in own if run.purpose == "control"]
        control = None
        if control_runs:
            comparisons = tuple(
                compare(
                    *map(latency_blocks, found.turns),
                    threshold=threshold,
                    loads=found.loads,
                    is_reversed=found.is_reversed(),
                )
                for found in map(valid_rounds, control_runs)
            )
            control = Control(comparisons, noise_of_controls(comparisons, threshold=threshold))
            controls.append(ControlRow(size, pooled_ms(control_runs[0].turns[0]), control))
        failures = [
            f"the control broke off: {run.failure}" for run in control_runs if run.failure is not None
        ]
        rows += [_row(run, control, threshold, failures) for run in own if run.purpose == "comparison"]
    return rows, controls


def _keep_spread(runs: Sequence[InterleavedRun]) -> list[str]:
    """Keep how much the control's processes differ for this device; a note on it, if they show that."""
    medians: dict[int, list[list[float]]] = {}
    for run in runs:
        if run.purpose == "control" and run.failure is None:
            found = valid_rounds(run)
            medians.setdefault(run.batch, []).append(ms_by_load(found.turns[0], found.loads))
    known = run_spread([*medians.values()])
    return [] if known is None else [keep_run_spread(runs[0].environment.device, *known)]


def _row(run: InterleavedRun, control: Control | None, threshold: float, failures: Sequence[str]) -> Row:
    kept = valid_rounds(run)
    a_ms, b_ms = kept.ms.values()
    return Row(
        batch=run.batch,
        a_ms=a_ms,
        b_ms=b_ms,
        comparison=compare_turns(
            kept,
            threshold=threshold,
            noise=control.noise if control is not None else None,
            failures=failures,
        ),
        is_trusted=not kept.interfered,
    )


RUNS = 5
"""How many processes run all builds: each loads them again, for independent runs."""

_ROUNDS = 4
"""Turns that each build has in one process."""


def compare_recipes(request: CompareRequest, setting: Setting) -> Comparisons:
    """Build the plans of each folder as often as `builds` says, and judge the second recipe by the first."""
    paths, count, threshold = _paths(request), request.builds or 0, request.threshold
    notes = ["every build was made without a timing cache of another one's: what is compared is recipes"]
    own = read_manifest(paths[0]).engines[0].plan.backend.name
    where = recipe_of(request, batch=None, backend=None)
    builder = open_builder(choose_for_running(request.backend, own).name)
    running = open_executor(where, builder, request.listener.note, measures=True)
    with scratch_folder() as scratch, running as executor:
        sides = [
            _build_side(path, request, scratch / name, notes, executor)
            for name, path in zip("AB", paths, strict=True)
        ]
        sizes = paired_sizes(*(side[0] for side in sides))
        # the models may differ, for how they were written is part of a recipe
        works = [work_of("", side[0]) for side in sides]
        notes += require_alike(unlike_work(*works), force=request.force)
        heats = [_heat(sides, size, run, setting) for size in sizes for run in range(RUNS)]
        results = race(heats, request.listener, setting.timeout, executor)
    notes += notes_of(results)
    by_size: dict[int, list[InterleavedRun]] = {}  # a device that failed leaves fewer runs, or none
    for result in results:
        by_size.setdefault(result.batch, []).append(result)
    return Comparisons(
        a=f"{count} builds of {paths[0].name}",
        b=f"{count} builds of {paths[1].name}",
        device=terms_shown(results),
        threshold=threshold,
        limit=request.fail_on or TURNS_LIMIT,
        rows=tuple(_builds_row(size, runs, threshold) for size, runs in by_size.items()),
        notes=tuple(dict.fromkeys(notes)),
        again=f"compare more builds: --builds {2 * count}",
        runs=tuple(results),
        built=tuple(engine.artifact for side in sides for build in side for engine in build.values()),
    )


# ── building ────────────────────────────────────────────────────────────────────────────────────────────


def _build_side(
    folder: Path,
    request: CompareRequest,
    scratch: Path,
    notes: list[str],
    executor: Executor,
) -> _Side:
    """All builds of one side: the folder's plans again and again."""
    manifest = read_manifest(folder)
    graphs = verified_graphs(folder, manifest)
    batch = batch_sizes(request.batch)
    wanted = {engine.path for engine, _ in points(manifest.engines, batch)}
    plans = [engine.plan for engine in manifest.engines if engine.path in wanted]
    own = plans[0].backend.name
    choice = choose_for_running(request.backend, own)
    if choice.name != own:
        notes.append(f"{folder.name} is built with {choice.name} instead of {own}: {choice.reason}")
    workbench = Workbench(builder=open_builder(choice.name), executor=executor, listener=request.listener)
    builds = []
    for index in range(request.builds or 0):
        place = scratch / str(index)
        place.mkdir(parents=True)
        engines = workbench.with_cache_in(place).build_again(graphs, plans, place)
        found = engines_at(place, manifest.onnx.inputs, engines, batch, request.sizes)
        builds.append({engine.batch: engine for engine in found})
    return builds


# ── measuring and judging ───────────────────────────────────────────────────────────────────────────────


def _heat(sides: Sequence[_Side], size: int, run: int, setting: Setting) -> InterleaveJob:
    """Every second run loads the engines in reverse, so that no build always gets the first memory."""
    engines = {  # by name, in the order of turns: A1, B1, A2, B2 …
        f"{letter}{number}": build[size]
        for number, builds in enumerate(zip(*sides, strict=True), 1)
        for letter, build in zip("AB", builds, strict=True)
    }
    names = [*reversed(engines)] if run % 2 else [*engines]
    loaded, label = [engines[name] for name in names], f"batch{size}: run {run + 1} of {RUNS}"
    return msgspec.structs.replace(
        heat(label, loaded, names, "builds", setting, _ROUNDS),
        least_rounds=0,
        block_s=setting.duration / (RUNS * _ROUNDS),
        reloads=False,  # every process loads them anew
    )


def _medians(runs: Sequence[InterleavedRun], side: str) -> list[list[float]]:
    """The median latency in milliseconds of each run of each build of a side."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for name, ms in valid_rounds(run).ms.items():
            if name.startswith(side):
                found.setdefault(int(name[1:]), []).append(ms)
    return [found[build] for build in sorted(found)]


def _builds_row(size: int, runs: Sequence[InterleavedRun], threshold: float) -> Row:
    medians = [_medians(runs, side) for side in "AB"]
    a, b = map(spread, medians)
    interfered = [text for run in map(valid_rounds, runs) for text in (*run.failures, *run.interfered)]
    return Row(
        batch=size,
        a_ms=a.geometric_mean,
        b_ms=b.geometric_mean,
        comparison=compare_builds(*medians, threshold=threshold, interfered=interfered),
        remarks=(f"A, {a.text}", f"B, {b.text}"),
    )
