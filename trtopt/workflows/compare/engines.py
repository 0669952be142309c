"""Two engines, or folders of them, in turns; and one against itself, for the machine's own noise."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from trtopt.measure.analysis.comparability import Work, paired_sizes, require_alike, unlike_work
from trtopt.measure.analysis.outcomes import Comparisons, ControlRow, Row
from trtopt.measure.loop.interleaved import LoadedEngine
from trtopt.measure.loop.rounds import latency_blocks, ms_by_load, notes_of, pooled_ms, valid_rounds
from trtopt.measure.statistics.comparison import compare
from trtopt.measure.statistics.control import Control, Pair, evaluate_control, run_spread
from trtopt.records import InterleavedRun
from trtopt.workflows.bench.interleaved import (
    Setting,
    check_repeats,
    loaded,
    measure_in_turns,
    short_turns,
    terms_shown,
    turns_job,
    work_of,
)
from trtopt.workflows.bench.resolve_engines import check_trust, resolve_engines
from trtopt.workflows.compare.run_spread import keep_run_spread
from trtopt.workflows.engine_points import points
from trtopt.workflows.listener import Listener

_LONGER = 4
"""So many times the samples halve an interval."""


def compare_engines(
    a: Path,
    b: Path | None,
    setting: Setting,
    *,
    control: int | None,
    threshold: float,
    limit: float,
    listener: Listener,
) -> tuple[Comparisons, tuple[InterleavedRun, ...]]:
    """Judge B's engines against A's at every batch size, A and B in turns in one process.

    With `control` A is also measured against itself, as many times, each in a process of its own; what that
    finds is allowed for in the verdict on B. Without B there is only that.
    """
    if control is not None:
        check_repeats("--control", control, 1)
    again = control or 0
    check_trust(setting.trust, [path for path in (a, b) if path is not None])
    notes: list[str] = []
    with ExitStack() as resources:
        found = [_sized(path, setting, notes, listener, resources) for path in (a, b) if path is not None]
        sides = [side for side, _ in found]
        sizes = paired_sizes(sides[0], sides[-1])
        notes += require_alike(unlike_work(found[0][1], found[-1][1]), force=setting.force)
        jobs, labels = [], []
        rounds = short_turns(setting.duration)
        for size in sizes:
            if len(sides) == 2:
                jobs.append(
                    turns_job([side[size] for side in sides], ("A", "B"), "comparison", size, setting, rounds)
                )
                labels.append(f"batch{size}: A and B")
            jobs += [
                turns_job([sides[0][size]] * 2, ("A", "A again"), "control", size, setting, rounds)
                for _ in range(again)
            ]
            labels += [f"batch{size}: A and A, {index + 1} of {again}" for index in range(again)]
        runs = measure_in_turns(jobs, labels, listener, setting.timeout)
    notes += notes_of(runs)
    notes += _kept_spread(runs)
    rows, controls = evaluate_turns(runs, threshold)
    comparisons = Comparisons(
        a=a.name,
        b=b.name if b is not None else a.name,
        device=terms_shown(runs),
        threshold=threshold,
        limit=limit,
        rows=tuple(rows),
        controls=tuple(controls),
        notes=tuple(dict.fromkeys(notes)),
        again=f"sample for longer: --duration {_LONGER * setting.duration:g}",
    )
    return comparisons, tuple(runs)


def evaluate_turns(runs: Sequence[InterleavedRun], threshold: float) -> tuple[list[Row], list[ControlRow]]:
    """The verdicts on runs in turns, by batch size, and what their controls came to."""
    rows: list[Row] = []
    controls: list[ControlRow] = []
    for size in sorted({run.batch for run in runs}):
        own = [run for run in runs if run.batch == size]
        control_runs = [run for run in own if run.purpose == "control"]
        evaluated = _evaluate_control(control_runs, threshold) if control_runs else None
        if evaluated is not None:
            controls.append(ControlRow(size, pooled_ms(control_runs[0].turns[0]), evaluated))
        failures = [
            f"the control broke off: {run.failure}" for run in control_runs if run.failure is not None
        ]
        rows += [_row(run, evaluated, threshold, failures) for run in own if run.purpose == "comparison"]
    return rows, controls


def _kept_spread(runs: Sequence[InterleavedRun]) -> list[str]:
    """Keep how much the control's processes differ for this device; a note on it, if they show that."""
    medians: dict[int, list[list[float]]] = {}
    for run in runs:
        if run.purpose == "control" and run.failure is None:
            found = valid_rounds(run)
            medians.setdefault(run.batch, []).append(ms_by_load(found.turns[0], found.loads))
    known = run_spread([*medians.values()])
    return [] if known is None else [keep_run_spread(runs[0].environment.device, known)]


def _sized(
    path: Path, setting: Setting, notes: list[str], listener: Listener, resources: ExitStack
) -> tuple[dict[int, LoadedEngine], Work]:
    found = resources.enter_context(
        resolve_engines(path, setting.batch, setting.backend, notes, listener, setting.trust)
    )
    side = {
        size: loaded(found.folder, found.inputs, engine, size, setting.sizes)
        for engine, size in points(found.engines, setting.batch)
    }
    return side, work_of(found.source_sha256, side)


def _evaluate_control(runs: Sequence[InterleavedRun], threshold: float) -> Control:
    pairs: list[Pair] = []
    for evaluated in map(valid_rounds, runs):
        a, b = map(latency_blocks, evaluated.turns)
        pairs.append((a, b, evaluated.loads, evaluated.is_reversed()))
    return evaluate_control(pairs, threshold=threshold)


def _row(run: InterleavedRun, control: Control | None, threshold: float, failures: Sequence[str]) -> Row:
    evaluated = valid_rounds(run)
    a, b = evaluated.turns
    return Row(
        batch=run.batch,
        a_ms=pooled_ms(a),
        b_ms=pooled_ms(b),
        comparison=compare(
            latency_blocks(a),
            latency_blocks(b),
            threshold=threshold,
            noise=control.noise if control is not None else None,
            interfered=evaluated.interfered,
            failures=(*evaluated.failures, *failures),
            loads=evaluated.loads,
            is_reversed=evaluated.is_reversed(),
        ),
    )
