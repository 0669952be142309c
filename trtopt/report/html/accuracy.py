"""Accuracy: what checks and the build's precision selection found."""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.records import Collected, PrecisionVerdict
from trtopt.records.precision import CheckReport, OutputDifference
from trtopt.report.casting import difference_line
from trtopt.report.html.blocks import (
    Block,
    Cell,
    Column,
    Lines,
    Missing,
    Panel,
    Section,
    Table,
    known_columns,
)

_OUTPUTS = (
    Column("subject"),
    Column("batch", "number"),
    Column("output"),
    Column("SQNR dB", "number", 1),
    Column("cosine", "number", 6),
    Column("largest error", "number", 6),
    Column("top-1 agreement", "share", 2),
    Column("mismatched", "number"),
    Column("batches of another size", "number"),
)
_LAYERS = (
    Column("added error", "number", 6),
    Column("SQNR dB", "number", 1),
    Column("node"),
    Column("operator"),
    Column("tensor"),
)
_CANDIDATES = (
    Column("batch", "number"),
    Column("precision"),
    Column("p50 ms", "number", 3),
    Column("latency against the baseline", "share", 1),
    Column("verdict"),
    Column("selected"),
)


def accuracy_answer(collected: Collected) -> list[str]:
    """In a sentence or two; empty: nothing was checked."""
    lines = [line for check in collected.checks.values() for line in _check_lines(check)]
    verdict = collected.manifest.verdict if collected.manifest is not None else None
    if verdict is not None:
        for candidate in verdict.candidates:
            if candidate.differences:
                worst = min(candidate.differences, key=lambda one: one.cosine)
                missed = "; not accurate enough, not measured" if candidate.violations else ""
                lines.append(f"{candidate.name} at build time: {difference_line(worst)}{missed}.")
    rewrite = collected.manifest.rewrite if collected.manifest is not None else None
    if rewrite is not None and rewrite.inputs_checked and rewrite.largest_error is not None:
        lines.append(
            f"The rewritten graph is verified on {rewrite.inputs_checked} inputs: largest error "
            f"{rewrite.largest_error:.2g} of the output's magnitude."
        )
    return lines


def _check_lines(check: CheckReport) -> Iterator[str]:
    random = " (random data: accuracy on real data is unknown)" if check.data_is_random else ""
    for subject in check.subjects:
        if subject.outputs:
            worst = min(subject.outputs, key=lambda one: one.cosine)
            met = "bounds NOT MET; " if subject.violations else ""
            at = f" at batch {subject.batch}" if subject.batch is not None else ""
            yield (
                f"{subject.name}{at} against {check.against} on {subject.samples} samples{random}: "
                f"{met}{difference_line(worst)}."
            )


def checks_section(collected: Collected, command: str) -> Section | Missing:
    """A panel for each check."""
    panels = [Panel(file, list(_check(check))) for file, check in collected.checks.items()]
    return (
        Section("checks", "Checks against the reference", panels) if panels else Missing("accuracy", command)
    )


def _check(check: CheckReport) -> Iterator[Block]:
    rows: list[list[Cell]] = [
        [subject.name, subject.batch, *_output(one)] for subject in check.subjects for one in subject.outputs
    ]
    title = f"Outputs against {check.against}, data {check.data}"
    yield Table(title, *known_columns(_OUTPUTS, rows))
    tasks = [
        f"{subject.name}: {subject.task.metric} {subject.task.checked:.4f}, the reference "
        f"{subject.task.reference:.4f}"
        for subject in check.subjects
        if subject.task is not None
    ]
    yield Lines([*tasks, *check.notes])
    if check.layers:
        layers: list[list[Cell]] = [
            [one.added, one.sqnr_db, one.node, one.op, one.tensor] for one in check.layers
        ]
        yield Table("Where the error enters", _LAYERS, layers, sorted_by=0)


def _output(one: OutputDifference) -> list[Cell]:
    figures = [one.sqnr_db, one.cosine, one.max_abs, one.top1]
    return [one.output, *figures, one.mismatched or None, one.resized or None]


def selection_section(collected: Collected) -> Section | None:
    """The precision selection of the build; None: none was requested, so nothing is missing."""
    verdict = collected.manifest.verdict if collected.manifest is not None else None
    if verdict is None:
        return None
    return Section("selection", "Precision selection", [Panel("", list(_selection(verdict)))])


def _selection(verdict: PrecisionVerdict) -> Iterator[Block]:
    rows: list[list[Cell]] = []
    for batch in verdict.batches:
        for one in batch.times:
            against = one.against_baseline
            change = against.ratio - 1 if against is not None and against.ratio is not None else None
            rows.append(
                [
                    batch.batch,
                    one.candidate,
                    one.latency_ms,
                    change,
                    "baseline" if against is None else against.verdict,
                    "selected" if one.candidate == batch.chosen else "",
                ]
            )
    title = f"Interleaved on {verdict.device}, contract {verdict.contract}, threshold {verdict.threshold:.1%}"
    yield Table(title, _CANDIDATES, rows)
    outputs: list[list[Cell]] = [
        [candidate.name, None, *_output(one)]
        for candidate in verdict.candidates
        for one in candidate.differences
    ]
    if outputs:
        yield Table("Outputs against the model's own", *known_columns(_OUTPUTS, outputs))
    left = [
        f"{candidate.name}: {len(candidate.left)} nodes left in float"
        for candidate in verdict.candidates
        if candidate.left
    ]
    yield Lines([*(f"batch {one.batch}: {one.chosen}: {one.reason}" for one in verdict.batches), *left])
    yield Lines(verdict.notes)
