"""Result files against each other, batch by batch: pure."""

from __future__ import annotations

from collections.abc import Sequence

from trtopt.errors import UsageError
from trtopt.measure.analysis.comparability import Work, paired_sizes, require_alike, unlike_work
from trtopt.measure.analysis.findings import doubts_of, is_on_host
from trtopt.measure.analysis.outcomes import DEVICE_LATENCY, Comparisons, Row
from trtopt.measure.analysis.trtexec_files import Times, device_latency
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


def _listed(points: dict[int, BenchPoint]) -> str:
    return ", ".join(map(str, sorted(points)))


def _row(a: BenchPoint, b: BenchPoint, threshold: float, on_host: bool, run_spread: RunSpread | None) -> Row:
    ours, theirs = a.latency, b.latency
    if ours.contract != theirs.contract:
        raise UsageError(
            f"batch {a.batch}: different contracts, {ours.contract.name} and {theirs.contract.name}",
            "a number means nothing without its terms: measure both under one --contract; "
            "--across-contracts shows where the difference comes from",
        )
    against = distrust(*([doubt.text for doubt in doubts_of(point, on_host=on_host)] for point in (a, b)))
    return _row_of(
        a.batch, ours.samples.latency_ms, theirs.samples.latency_ms, threshold, against, run_spread
    )


def distrust(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """What the sides say against themselves."""
    sides = (("A", a), ("B", b))
    return [f"{name} is marked as not to be trusted: {text}" for name, texts in sides for text in texts]


def _row_of(
    batch: int | None,
    first: Sequence[float],
    second: Sequence[float],
    threshold: float,
    interfered: Sequence[str],
    run_spread: RunSpread | None = None,
) -> Row:
    return Row(
        batch=batch,
        a_ms=summarise(first).median,
        b_ms=summarise(second).median,
        comparison=compare_runs(
            blocks_of(first),
            blocks_of(second),
            threshold=threshold,
            interfered=interfered,
            run_spread=run_spread,
        ),
    )


# ── what trtexec exported ───────────────────────────────────────────────────────────────────────────────


def compare_times(
    a: BenchReport | Times,
    b: BenchReport | Times,
    *,
    batch: int | None,
    assumed: str | None,
    threshold: float,
    limit: float = FILES_LIMIT,
) -> Comparisons:
    """Compare two sides of which one at least is trtexec's: by device latency, the only figure both have.

    trtexec's files name neither contract, batch size nor machine. Against a result file the contract must be
    `assumed`, and `batch` chooses one of several.
    """
    sides = [_device_latencies(side, batch, assumed) for side in (a, b)]
    size = next((side.batch for side in sides if side.batch is not None), batch)
    against = distrust(sides[0].untrustworthy, sides[1].untrustworthy)
    notes = [
        "trtexec's files name no contract, batch size or machine: that both sides are alike in them is "
        f"{'assumed by --assume-contract' if assumed else 'not verified'}",
    ]
    return Comparisons(
        a=sides[0].name,
        b=sides[1].name,
        device="unnamed machines",
        threshold=threshold,
        limit=limit,
        rows=(_row_of(size, sides[0].latencies, sides[1].latencies, threshold, against),),
        notes=tuple(notes),
        figure=DEVICE_LATENCY,
    )


def _device_latencies(side: BenchReport | Times, batch: int | None, assumed: str | None) -> Times:
    if isinstance(side, Times):
        return side
    found = [point for point in side.points if batch in (None, point.batch)]
    if len(found) != 1:
        raise UsageError(
            f"the result file has batches {_listed(_by_batch(side))}, and trtexec's file holds one",
            "name it with --batch",
        )
    measured = found[0].throughput or found[0].latency
    contract = measured.contract.name
    if assumed != contract:
        raise UsageError(
            f"the result file's contract is {contract}, trtexec's file names none"
            + (f" and is assumed to be {assumed}" if assumed else ""),
            f"if trtexec ran on the same terms, say so with --assume-contract {contract}",
        )
    name = f"{side.environment.backend} on {side.environment.device.name}"
    times = tuple(device_latency(found[0]))
    if not times:
        raise UsageError(
            f"the result file's batch {found[0].batch} failed before the device had timed a query",
            "measure it again",
        )
    doubts = doubts_of(found[0], on_host=is_on_host(side))
    return Times(name, times, found[0].batch, tuple(doubt.text for doubt in doubts))
