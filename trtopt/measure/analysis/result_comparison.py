"""Result files against each other, batch by batch: pure."""

from __future__ import annotations

from collections.abc import Sequence

from trtopt.errors import UsageError
from trtopt.measure.analysis.findings import doubts_of, is_on_host
from trtopt.measure.analysis.outcomes import Comparisons, Row, Work, paired_sizes, require_alike, unlike_work
from trtopt.measure.statistics.comparison import RunSpread, blocks_of, compare_runs
from trtopt.measure.statistics.summaries import summarise
from trtopt.records import BenchPoint, BenchReport, Environment

FILES_LIMIT = 0.05
"""The slowdown that result files must rule out, unless --fail-on is given: they cannot rule out much less."""


def compare_reports(
    a: BenchReport,
    b: BenchReport,
    *,
    threshold: float,
    force: bool,
    batch: Sequence[int] | None = None,
    limit: float = FILES_LIMIT,
    run_spread: RunSpread | None = None,
    again: str = "",
) -> Comparisons:
    """Compare the latency passes of two reports, paired by batch size; `a` is the baseline.

    `batch` are the sizes to compare, by default all. `run_spread` is how much separate runs differ on their
    device, if that was measured; for the rest see `Comparisons`.
    """
    notes = machine_notes(a, b, force) + work_notes(a, b, force)
    on_host = is_on_host(a)
    rows = tuple(_row(*pair, threshold, on_host, run_spread) for pair in paired_points(a, b, batch))
    return Comparisons(
        a=str(a.environment.backend),
        b=str(b.environment.backend),
        device=b.environment.device.name,
        threshold=threshold,
        limit=limit,
        rows=rows,
        notes=tuple(notes),
        again=again,
    )


def paired_points(
    a: BenchReport, b: BenchReport, batch: Sequence[int] | None
) -> list[tuple[BenchPoint, BenchPoint]]:
    """What both hold, by batch size; only those of `batch`, if it is given."""
    ours, theirs = _by_batch(a), _by_batch(b)
    return [(ours[size], theirs[size]) for size in paired_sizes(ours, theirs, batch)]


def machine_notes(a: BenchReport, b: BenchReport, force: bool) -> list[str]:
    """What differs between the machines. The TensorRT version may differ."""
    there, here = a.environment, b.environment
    pairs = (
        ("device", there.device.name, here.device.name),
        ("driver", there.device.driver, here.device.driver),
        ("CPU", there.cpu, here.cpu),
        ("backend", there.backend.name, here.backend.name),
        ("cores", *_cores(there, here)),
    )
    unlike = [f"{name}: {first} against {second}" for name, first, second in pairs if first != second]
    if unlike and not force:
        raise UsageError(
            f"the two files come from different machines ({'; '.join(unlike)})",
            "measure both on one machine, or compare them anyway with --force",
        )
    return unlike


def _cores(there: Environment, here: Environment) -> tuple[int | None, int | None]:
    """How many cores each side had where they did the work, as far as both tell."""
    if here.device.kind != "cpu" or not (there.cpus and here.cpus):
        return None, None
    return len(there.cpus), len(here.cpus)


def work_notes(a: BenchReport, b: BenchReport, force: bool) -> list[str]:
    """What differs in the work that was measured."""
    notes = require_alike(unlike_work(_work_of(a), _work_of(b)), force=force)
    if a.model_sha256 != b.model_sha256 and not (a.source_sha256 and b.source_sha256):
        notes.append("the graphs differ, and not both files name the model that theirs is made of")
    return notes


def _work_of(report: BenchReport) -> Work:
    return Work(report.source_sha256, {point.batch: point.latency.shapes for point in report.points})


def _by_batch(report: BenchReport) -> dict[int, BenchPoint]:
    return {point.batch: point for point in report.points}


def _row(a: BenchPoint, b: BenchPoint, threshold: float, on_host: bool, run_spread: RunSpread | None) -> Row:
    ours, theirs = a.latency, b.latency
    if ours.contract != theirs.contract:
        raise UsageError(
            f"batch {a.batch}: different contracts, {ours.contract.name} and {theirs.contract.name}",
            "a number means nothing without its terms: measure both under one --contract; "
            "--across-contracts shows where the difference comes from",
        )
    against = distrust(*([doubt.text for doubt in doubts_of(point, on_host=on_host)] for point in (a, b)))
    first, second = ours.samples.latency_ms, theirs.samples.latency_ms
    return Row(
        batch=a.batch,
        a_ms=summarise(first).median,
        b_ms=summarise(second).median,
        comparison=compare_runs(
            blocks_of(first),
            blocks_of(second),
            threshold=threshold,
            interfered=against,
            run_spread=run_spread,
        ),
    )


def distrust(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """What the sides say against themselves."""
    sides = (("A", a), ("B", b))
    return [f"{name} is marked as not to be trusted: {text}" for name, texts in sides for text in texts]
