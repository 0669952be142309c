"""A sweep: every point, the Pareto front, and the best point under each latency bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtopt.measure.analysis.sweep_points import Choices, choices_of, is_decided_busy
from trtopt.records import SweepPoint, SweepReport, Trust
from trtopt.report.notes import Note, Severity, plain
from trtopt.report.view import Block, Column, Lines, Table, View, columns_of, shown, table

_MIB = 2**20


def sweep_view(report: SweepReport) -> View:
    """The best point at each length of the axes, all points, and the best under each latency bound."""
    blocks: list[Block] = [
        Lines(list(best_lines(report))),
        points_table(report),
        *(bests_table(report, choices) for choices in choices_of(report)),
    ]
    return View("", blocks, sweep_notes(report))


def points_table(report: SweepReport) -> Table:
    """One row per point; `*` is on the Pareto front, `knee` its knee, `!` not trustworthy, `~` unsteady."""
    marks = marks_of(report)

    def mark(point: SweepPoint) -> str:
        return "failed" if point.failure is not None else marks.get(point.key, "")

    columns: list[Column[SweepPoint]] = [
        Column("point", lambda one: one.label, fit="fold"),
        Column("Pareto", mark, face="page"),  # a phone shows the first three
        Column("p50 ms", lambda one: _latency(one)[0], ".3f"),
        Column("p90 ms", lambda one: _latency(one)[1], ".3f", face="page"),
        Column("p99 ms", lambda one: _latency(one)[2], ".3f"),
        *columns_of(("busy p50 ms", "busy p99 ms"), _busy, ".3f", face="page"),
        Column("queries", lambda one: one.queries or None, ",", face="page"),
        Column("samples/s", lambda one: one.samples_per_s, ",.0f"),
        Column("W", lambda one: one.power.watts if one.power else None, ",.2f", face="page"),
        Column("samples/J", lambda one: one.samples_per_joule, ",.2f"),
        Column("MiB", lambda one: one.memory.peak_bytes / _MIB if one.memory else None, ",.1f"),
        Column(
            "engine MiB",
            lambda one: None if one.engine_bytes is None else one.engine_bytes / _MIB,
            ",.2f",
            "page",
        ),
        Column("build s", lambda one: one.build_seconds, ",.1f", face="page"),
        Column("Pareto", mark, face="terminal"),
    ]
    terms = report.terms
    title = f"{report.model}: {terms.backend} on {terms.device.name}, contract {terms.contract.name}"
    return table(title, columns, report.points)


def _latency(point: SweepPoint) -> Sequence[float | None]:
    """Percentiles of one query in flight."""
    one = point.latency
    return (one.p50_ms, one.p90_ms, one.p99_ms) if one else (None, None, None)


def _busy(point: SweepPoint) -> Sequence[float | None]:
    one = point.busy_latency
    return (one.p50_ms, one.p99_ms) if one else (None, None)


def point_line(point: SweepPoint) -> str:
    """A point in one line, for logs."""
    if point.failure is not None:
        return f"{point.label}: failed: {point.failure.splitlines()[0]}"
    p50, _, p99 = (shown(ms, ".3f") for ms in _latency(point))
    return f"{point.label}: p50 {p50} ms, p99 {p99} ms, {shown(point.samples_per_s, ',.0f')} samples/s"


def best_lines(report: SweepReport) -> Iterator[str]:
    """The point with the most samples a second at each set of lengths of axes, a line each."""
    for choices in choices_of(report):
        best = choices.front[-1]
        doubt = "" if best.trust is Trust.FULL else f", which is {best.trust.value}"
        yield f"best {best.samples_per_s:,.0f} samples/s at {best.label}{doubt}"


def sweep_notes(report: SweepReport) -> list[Note]:
    """Failures, points that are not trustworthy or unsteady, and remarks on the figures."""
    notes = [Note(Severity.FAILURE, f"{p.label} failed: {p.failure}") for p in report.points if p.failure]
    notes += [Note(Severity.DOUBT, line) for line in _doubts(report)]
    return [*notes, *plain(_of_figures(report))]


def marks_of(report: SweepReport) -> dict[str, str]:
    """`*` and `* knee` by the keys of the points on a front, followed by the mark of their trust."""
    marks: dict[str, str] = {}
    for choices in choices_of(report):
        marks |= {point.key: "*" for point in choices.front}
        if choices.knee is not None:
            marks[choices.knee.key] = "* knee"
    for point in report.measured:
        if point.trust is not Trust.FULL:
            marks[point.key] = marks.get(point.key, "") + point.trust.mark
    return marks


def at_lengths(axes: dict[str, int]) -> str:
    """` at seq=128`, or nothing where no axis is swept."""
    return " at " + ", ".join(f"{name}={length}" for name, length in axes.items()) if axes else ""


def latency_name(report: SweepReport) -> str:
    """The latency that the front and the bounds are about."""
    return "p99 under full load" if is_decided_busy(report) else "p99"


def bests_table(report: SweepReport, choices: Choices) -> Table:
    """The best point under each latency bound."""
    latency = latency_name(report)
    columns: list[Column[tuple[float, SweepPoint]]] = [
        Column(f"{latency} ≤ ms", lambda row: row[0], "g"),
        Column("batch", lambda row: row[1].setting.batch, ""),
        Column("point", lambda row: row[1].label, fit="fold"),
        Column("samples/s", lambda row: row[1].samples_per_s, ",.0f"),
    ]
    return table(f"Best under a bound on {latency}{at_lengths(choices.axes)}", columns, choices.bests)


def remarks_on(report: SweepReport) -> list[str]:
    """Failures, points that are not trustworthy or unsteady, and remarks on the figures."""
    return [*on_points(report), *_of_figures(report)]


def _of_figures(report: SweepReport) -> Iterator[str]:
    if is_decided_busy(report):
        yield (
            "front and bounds use latency under full load, queueing included: one query in "
            "flight says nothing about several streams"
        )
    sources = {point.power.source for point in report.measured if point.power is not None}
    if sources:
        yield f"samples/J: throughput over mean power, from the {' and the '.join(sorted(sources))}"
    elif report.measured:
        yield "samples/J: no source of power readings on this machine"
    if report.measured and not any(point.memory for point in report.measured):
        yield f"MiB: {report.terms.backend} reports no allocations"


def on_points(report: SweepReport) -> Iterator[str]:
    """Points that failed, are not trustworthy or unsteady, each with its reason."""
    yield from (
        f"{point.label} failed: {point.failure}" for point in report.points if point.failure is not None
    )
    yield from _doubts(report)


def _doubts(report: SweepReport) -> Iterator[str]:
    """The worst first."""
    for trust in (Trust.NONE, Trust.UNSTEADY):
        for point in report.points:
            for text in point.untrustworthy if trust is Trust.NONE else point.unsteady:
                yield f"{point.label}{trust.mark} is {trust.value}: {text}"
