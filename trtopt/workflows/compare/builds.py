"""Recipes: each is built several times, and all builds take turns, several times over.

Every build starts without a timing cache. TensorRT's choices rest on timings, and a shared cache would give
the first build's timings to all others and hide their variation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trtopt.device.backends import choose_for_running, open_builder
from trtopt.errors import UsageError
from trtopt.executors.api import Executor
from trtopt.executors.choice import open_executor
from trtopt.files.atomic import scratch_folder
from trtopt.files.manifests import read_manifest
from trtopt.measure.analysis.comparability import Work, paired_sizes, require_alike, unlike_work
from trtopt.measure.analysis.outcomes import BuiltRow, Comparisons, Lottery, LotteryBatch, Row
from trtopt.measure.contracts import WARMUP_S
from trtopt.measure.loop.interleaved import InterleaveJob, LoadedEngine, Variant
from trtopt.measure.loop.rounds import notes_of, pooled_ms, valid_rounds
from trtopt.measure.statistics.builds import compare_builds, compare_paired, spread
from trtopt.recipe import Recipe
from trtopt.records import BuildSettings, EngineArtifact, InterleavedRun, Manifest
from trtopt.workflows.bench.interleaved import (
    Setting,
    check_repeats,
    loaded,
    measure_in_turns,
    terms_shown,
    work_of,
)
from trtopt.workflows.build.build import build
from trtopt.workflows.build.engines import TIMING_CACHE_FILE, BuildOptions, build_engines
from trtopt.workflows.build.timing_cache_commands import NO_CACHE
from trtopt.workflows.build.verified_graphs import verified_graphs
from trtopt.workflows.engine_points import points
from trtopt.workflows.listener import Listener

RUNS = 5
"""How many processes run all builds: each loads them again, for independent runs."""

_ROUNDS = 4
"""Turns that each build has in one process."""


@dataclass(frozen=True)
class _Side:
    """One recipe's builds: for each its folder and its engines by batch size."""

    manifest: Manifest
    builds: tuple[tuple[Path, dict[int, EngineArtifact]], ...]


Found = tuple[Comparisons | Lottery, tuple[InterleavedRun, ...], tuple[EngineArtifact, ...]]


def compare_recipes(
    paths: Sequence[Path],
    count: int,
    recipe: Recipe,
    setting: Setting,
    *,
    threshold: float,
    limit: float,
    listener: Listener,
) -> Found:
    """Build each model `count` times and judge the second recipe against the first.

    `paths` are ONNX files, built as `recipe` says (but for its verdict), or build folders, whose plans are
    built again. With one path its builds are compared to one another.
    """
    check_repeats("--builds", count, 2)
    notes = ["every build was made without a timing cache of another one's: what is compared is recipes"]
    builder = open_builder(_backend_of(paths[0], setting))
    with scratch_folder() as scratch, open_executor(recipe, builder, listener.note) as executor:
        executor.require_measuring()
        sides = [
            _built(path, count, recipe, setting, scratch / name, notes, listener, executor)
            for name, path in zip("AB", paths, strict=False)
        ]
        sizes = paired_sizes(sides[0].builds[0][1], sides[-1].builds[0][1])
        works = [_work(side, sizes) for side in sides]
        notes += require_alike(unlike_work(works[0], works[-1]), force=setting.force)
        jobs = [_job(sides, size, run, setting) for size in sizes for run in range(RUNS)]
        labels = [f"batch{size}: run {run + 1} of {RUNS}" for size in sizes for run in range(RUNS)]
        results = measure_in_turns(jobs, labels, listener, setting.timeout, executor)
    notes += notes_of(results)
    by_size: dict[int, list[InterleavedRun]] = {}  # a device that failed leaves fewer runs, or none
    for result in results:
        by_size.setdefault(result.batch, []).append(result)
    device = terms_shown(results)
    outcome: Comparisons | Lottery
    if len(sides) == 1:
        batches = [_lottery(size, sides[0], runs, threshold) for size, runs in by_size.items()]
        outcome = Lottery(paths[0].name, device, threshold, tuple(batches), tuple(dict.fromkeys(notes)))
    else:
        outcome = Comparisons(
            a=f"{count} builds of {paths[0].name}",
            b=f"{count} builds of {paths[1].name}",
            device=device,
            threshold=threshold,
            limit=limit,
            rows=tuple(_row(size, runs, threshold) for size, runs in by_size.items()),
            notes=tuple(dict.fromkeys(notes)),
            again=f"compare more builds: --builds {2 * count}",
        )
    engines = tuple(engine for side in sides for _, by_batch in side.builds for engine in by_batch.values())
    return outcome, tuple(results), engines


# ── building ────────────────────────────────────────────────────────────────────────────────────────────


def _backend_of(path: Path, setting: Setting) -> str:
    """What a side is built with."""
    own = read_manifest(path).engines[0].plan.backend.name if path.is_dir() else None
    return choose_for_running(setting.backend, own).name


def _built(
    path: Path,
    count: int,
    recipe: Recipe,
    setting: Setting,
    scratch: Path,
    notes: list[str],
    listener: Listener,
    executor: Executor,
) -> _Side:
    """All builds of one side: the recipe's first, which fixes model and plans, then the same plans again."""
    if path.is_dir():
        if given := recipe.given:
            raise UsageError(
                f"{path}: a build folder is its own recipe, {', '.join(sorted(given))} cannot be set",
                "omit the build options, or give the ONNX file",
            )
        base, first = path, 1
    else:
        base, first = scratch / "1", 2
        _build_first(path, recipe, setting, base, notes, listener, executor)
    manifest = read_manifest(base)
    graphs = verified_graphs(base, manifest)
    wanted = list(dict.fromkeys(engine.path for engine, _ in points(manifest.engines, setting.batch)))
    plans = [engine.plan for engine in manifest.engines if engine.path in wanted]
    own = plans[0].backend.name
    choice = choose_for_running(setting.backend, own)
    if choice.name != own:
        notes.append(f"{path.name} is built with {choice.name} instead of {own}: {choice.reason}")
        backend = open_builder(choice.name).backend
        plans = [msgspec.structs.replace(plan, settings=BuildSettings(), backend=backend) for plan in plans]
    builds = [(base, _by_size(manifest.engines, setting))] if first == 2 else []
    for index in range(first, count + 1):
        folder = scratch / str(index)
        folder.mkdir(parents=True)
        cache = folder / TIMING_CACHE_FILE if open_builder(choice.name).uses_timing_cache else None
        how = BuildOptions(cache, executor=executor, limit_s=recipe.build_timeout)
        engines = build_engines(graphs, plans, folder, how, listener)
        builds.append((folder, _by_size(engines, setting)))
    return _Side(manifest, tuple(builds))


def _build_first(
    path: Path,
    recipe: Recipe,
    setting: Setting,
    folder: Path,
    notes: list[str],
    listener: Listener,
    executor: Executor,
) -> None:
    if recipe.timing_cache not in (None, NO_CACHE):
        raise UsageError(
            "--builds: builds that share a timing cache hide what their recipe leaves to luck",
            "leave the timing cache out of the recipe",
        )
    choice = choose_for_running(setting.backend)
    notes.append(f"{path.name} is built with {choice.name}: {choice.reason}")
    recipe = msgspec.structs.replace(
        recipe,
        backend=choice.name,
        verdict=False,  # recipes are compared as they are written
        timing_cache=NO_CACHE,
    )
    if setting.batch is not None:
        recipe = msgspec.structs.replace(recipe, batch=setting.batch, ranges=())
    build(path, folder, recipe, executor=executor, listener=listener)


def _by_size(engines: Sequence[EngineArtifact], setting: Setting) -> dict[int, EngineArtifact]:
    return {size: engine for engine, size in points(engines, setting.batch)}


# ── measuring and judging ───────────────────────────────────────────────────────────────────────────────


def _work(side: _Side, sizes: Sequence[int]) -> Work:
    """What a side does; the models may differ, for how they were written is part of a recipe."""
    folder, by_size = side.builds[0]
    inputs = side.manifest.onnx.inputs
    return work_of("", {size: loaded(folder, inputs, by_size[size], size) for size in sizes})


def _names(sides: int, builds: int) -> list[tuple[int, int, str]]:
    """(side, build, name) in the order of turns: A1, B1, A2, B2 …"""
    return [(side, build, f"{'AB'[side]}{build + 1}") for build in range(builds) for side in range(sides)]


def _job(sides: Sequence[_Side], size: int, run: int, setting: Setting) -> InterleaveJob:
    """Every second run loads the engines in reverse, so that no build always gets the first memory."""
    engines: list[LoadedEngine] = []
    variants: list[Variant] = []
    for index, (side, number, name) in enumerate(_names(len(sides), len(sides[0].builds))):
        folder, by_size = sides[side].builds[number]
        engines.append(loaded(folder, sides[side].manifest.onnx.inputs, by_size[size], size))
        variants.append(Variant(name=name, engine=index, contract=setting.contract))
    if run % 2:
        last = len(engines) - 1
        engines.reverse()
        variants = [
            msgspec.structs.replace(variant, engine=last - variant.engine) for variant in reversed(variants)
        ]
    return InterleaveJob(
        engines=tuple(engines),
        variants=tuple(variants),
        rounds=_ROUNDS,
        purpose="builds",
        batch=size,
        data=setting.data,
        warmup_s=WARMUP_S,
        block_s=setting.duration / (RUNS * _ROUNDS),
        reloads=False,  # every process loads them anew
    )


def _medians(runs: Sequence[InterleavedRun], side: str) -> list[list[float]]:
    """The median latency in milliseconds of each run of each build of a side."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for turns in valid_rounds(run).turns:
            if turns.name.startswith(side):
                found.setdefault(int(turns.name[1:]), []).append(pooled_ms(turns))
    return [found[build] for build in sorted(found)]


def _disturbed(runs: Sequence[InterleavedRun]) -> list[str]:
    return [text for run in map(valid_rounds, runs) for text in (*run.failures, *run.interfered)]


def _row(size: int, runs: Sequence[InterleavedRun], threshold: float) -> Row:
    evaluated = compare_builds(
        _medians(runs, "A"), _medians(runs, "B"), threshold=threshold, interfered=_disturbed(runs)
    )
    return Row(
        batch=size,
        a_ms=evaluated.a.geometric_mean,
        b_ms=evaluated.b.geometric_mean,
        comparison=evaluated.comparison,
        remarks=(f"A, {evaluated.a.text}", f"B, {evaluated.b.text}"),
    )


def _lottery(size: int, side: _Side, runs: Sequence[InterleavedRun], threshold: float) -> LotteryBatch:
    medians, interfered = _medians(runs, "A"), _disturbed(runs)
    engines = [by_size[size] for _, by_size in side.builds]
    rows = [
        BuiltRow(
            name=f"build {index + 1}",
            ms=spread([own]).geometric_mean,
            size_bytes=engine.size_bytes,
            comparison=compare_paired(medians[0], own, threshold=threshold, interfered=interfered)
            if index
            else None,
        )
        for index, (own, engine) in enumerate(zip(medians, engines, strict=True))
    ]
    distinct = len({engine.sha256 for engine in engines})
    return LotteryBatch(size, tuple(rows), spread(medians), distinct)
