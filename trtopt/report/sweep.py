"""A sweep: every point, the Pareto front, and the best point under each latency bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtopt.measure.analysis.sweep_points import COLUMNS, Choices, choices_of, is_decided_busy, rows_of
from trtopt.printable import counted
from trtopt.records import SweepPoint, SweepReport, Trust
from trtopt.report.charts import Channel, Datum, chart, coloured, marks
from trtopt.report.view import (
    Block,
    Chart,
    Column,
    Late,
    Lines,
    Note,
    Severity,
    Table,
    View,
    mib,
    shown,
    table,
    view_of,
)

_CURVES = (
    ("Median latency of one query in flight", "p50_ms", "ms"),
    ("p99 latency of one query in flight", "p99_ms", "ms"),
    ("Throughput", "samples_per_s", "samples/s"),
    ("Samples per joule", "samples_per_joule", "samples/J"),
)


@view_of.register
def sweep_view(report: SweepReport) -> View:
    """The best point at each length of the axes, all points, and the best under each latency bound."""
    failed = len(report.points) - len(report.measured)
    failures = [f"{failed} of {counted(len(report.points), 'point')} failed"] if failed else []
    outcome = "; ".join([*_best_lines(report), *failures])
    return View("", Late(lambda: _parts(report)), list(sweep_notes(report)), outcome, rows_of(report))


def _parts(report: SweepReport) -> Iterator[Block]:
    yield Lines(list(_best_lines(report)))
    yield _points_table(report)
    for choices in choices_of(report):
        yield bests_table(report, choices)
        yield _front(report, choices)
    yield from _curves(report.measured)


def _points_table(report: SweepReport) -> Table:
    """One row per point; `*` is on the Pareto front, `knee` its knee, `!` not trustworthy, `~` unsteady."""
    marks = _marks_of(report)
    columns: list[Column[SweepPoint]] = [
        Column("point", lambda one: one.label, fit="fold"),
        Column("Pareto", lambda one: marks.get(one.key, ""), face="page"),  # a phone shows the first three
        Column("p50 ms", COLUMNS["p50_ms"], ".3f"),
        Column("p90 ms", COLUMNS["p90_ms"], ".3f", face="page"),
        Column("p99 ms", COLUMNS["p99_ms"], ".3f"),
        Column("busy p50 ms", COLUMNS["busy_p50_ms"], ".3f", face="page"),
        Column("busy p99 ms", COLUMNS["busy_p99_ms"], ".3f", face="page"),
        Column("queries", lambda one: one.queries or None, ",", face="page"),
        Column("samples/s", COLUMNS["samples_per_s"], ",.0f"),
        Column("W", COLUMNS["watts"], ",.2f", face="page"),
        Column("samples/J", COLUMNS["samples_per_joule"], ",.2f"),
        Column("MiB", lambda one: mib(one.memory.peak_bytes) if one.memory else None, ",.1f"),
        Column("engine MiB", lambda one: mib(one.engine_bytes), ",.2f", "page"),
        Column("build s", COLUMNS["build_seconds"], ",.1f", face="page"),
        Column("Pareto", lambda one: marks.get(one.key, ""), face="terminal"),
    ]
    terms = report.terms
    title = f"{report.model}: {terms.backend} on {terms.device.name}, contract {terms.contract.name}"
    return table(title, columns, report.points)


def point_line(point: SweepPoint) -> str:
    """A point in one line, for logs."""
    if point.failure is not None:
        return f"{point.label}: failed: {point.failure.splitlines()[0]}"
    latency = point.latency
    p50, p99 = (latency.p50_ms, latency.p99_ms) if latency else (None, None)
    return (
        f"{point.label}: p50 {shown(p50, '.3f')} ms, p99 {shown(p99, '.3f')} ms, "
        f"{shown(point.samples_per_s, ',.0f')} samples/s"
    )


def _best_lines(report: SweepReport) -> Iterator[str]:
    """The point with the most samples a second at each set of lengths of axes, a line each."""
    for choices in choices_of(report):
        best = choices.front[-1]
        doubt = "" if best.trust is Trust.FULL else f", which is {best.trust.value}"
        yield f"best {best.samples_per_s:,.0f} samples/s at {best.label}{doubt}"


def sweep_notes(report: SweepReport) -> Iterator[Note]:
    """Failures, points that are not trustworthy or unsteady, the worst first, and remarks on the figures."""
    for point in report.points:
        if point.failure is not None:
            yield Note(Severity.FAILURE, f"{point.label} failed: {point.failure}")
    for point in report.points:
        for text in point.untrustworthy:
            yield Note(Severity.DOUBT, f"{point.label}{Trust.NONE.mark} is {Trust.NONE.value}: {text}")
    trust, unsteady = Trust.UNSTEADY, [(one.label, text) for one in report.points for text in one.unsteady]
    labels = ", ".join(dict.fromkeys(label for label, _ in unsteady))
    short = f"{trust.value} ({trust.mark}): {labels}; -v shows why"
    for label, text in unsteady:
        yield Note(Severity.DOUBT, short, in_full=f"{label}{trust.mark} is {trust.value}: {text}")
        short = ""
    if is_decided_busy(report):
        yield Note(
            Severity.NOTE,
            "front and bounds use latency under full load, queueing included: one query in "
            "flight says nothing about several streams",
        )
    if any(point.watts is not None for point in report.measured):
        yield Note(Severity.NOTE, "samples/J: throughput over mean power, from the energy counter")
    elif report.measured:
        yield Note(Severity.NOTE, "samples/J: this machine has no counter of energy")
    if report.measured and not any(point.memory for point in report.measured):
        yield Note(Severity.NOTE, f"MiB: {report.terms.backend} reports no allocations")


def _marks_of(report: SweepReport) -> dict[str, str]:
    """By key: `*` and `* knee` of the points on a front, followed by the mark of their trust; `failed`."""
    marks = {point.key: "failed" for point in report.points if point.failure is not None}
    for choices in choices_of(report):
        marks |= {point.key: "*" for point in choices.front}
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


def _front(report: SweepReport, choices: Choices) -> Chart:
    """Throughput against latency, with a line through the points on the front."""
    latency = latency_name(report)
    rows = [
        {
            "point": point.label,
            "ms": cost,
            "rate": point.samples_per_s,
            "what": _place(point, choices),
            "on_front": point in choices.front,
        }
        for point, cost in zip(choices.points, choices.costs_ms, strict=True)
    ]
    point, ms = Channel("point", "point"), Channel("ms", "ms", ".3f", f"{latency}, ms", is_log=True)
    rate = Channel("rate", "samples/s", ",.0f", "throughput, samples/s", is_log=True)
    colour = coloured("what", sort=None)
    line = {**marks("line", x=ms, y=rate), "transform": [{"filter": "datum.on_front"}]}
    dots = marks("point", filled=True, size=60, x=ms, y=rate, color=colour)
    title = f"Throughput against {latency}{at_lengths(choices.axes)}"
    return chart(title, rows, [point, ms, rate], line, dots, height=320)


def _place(point: SweepPoint, choices: Choices) -> str:
    if point == choices.knee:
        return "knee"
    if point in choices.front:
        return "on the front"
    return "beaten" if point.trust is Trust.FULL else point.trust.value


def _curves(points: Sequence[SweepPoint]) -> Iterator[Chart]:
    """Each figure over several batch sizes, with a line for all points that are alike but for those."""
    sizes = sorted({point.setting.batch for point in points})
    rows: list[Datum] = [
        {
            "batch": point.setting.batch,
            "series": point.label.replace(f"batch{point.setting.batch}", "", 1).strip()
            or "the graph's precision",
            **{field: COLUMNS[field](point) for _, field, _ in _CURVES},
        }
        for point in points
    ]
    axis = {"axis": {"values": sizes}, "scale": {"base": 2}}
    batch = Channel("batch", "batch", "d", "batch size, samples", True, axis)
    series = coloured("series", "curve", sort=None)
    for title, field, unit in _CURVES:
        drawn = [row for row in rows if row[field]]
        if len(sizes) > 1 and drawn:
            y = Channel(field, unit, ".4g", is_log=True)
            lines = marks("line", point=True, x=batch, y=y, color=series)
            yield chart(title, drawn, [series, batch, y], lines, is_small=True)
