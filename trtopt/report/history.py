"""A history: the verdict on each series, every change with its cause, and the runs as a chart."""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.printable import counted
from trtopt.records import HistoryChange, HistoryReport, HistorySeries
from trtopt.records.base import Row
from trtopt.report.charts import Channel, chart, marks
from trtopt.report.view import (
    Block,
    Chart,
    Column,
    GateOutcome,
    GateRow,
    Late,
    Note,
    Severity,
    View,
    cells_of,
    plain,
    table,
    view_of,
)

_BARS = "▁▂▃▄▅▆▇█"
_RUNS_SHOWN = 30
_TICKS = 20
_OPEN: dict[str, GateOutcome] = {"UNDECIDED": "undecided", "UNTRUSTWORTHY": "untrustworthy"}


@view_of.register
def history_view(report: HistoryReport) -> View:
    """A row for each series, then one for each change."""
    doubts = [
        Note(Severity.DOUBT, f"{one.engine}, {one.mode}: {one.reason}")
        for one in report.series
        if one.verdict in _OPEN
    ]
    verdicts = [one.verdict for one in report.series]
    outcome = ", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts))
    return View(
        f"{report.folder}: {len(report.series)} series",
        Late(lambda: _parts(report)),
        [*doubts, *plain(report.notes)],
        outcome,
        _figures(report),
        [*map(_gate_row, report.series)]
        or [GateRow("trtopt history", "untrustworthy", f"no figures: {'; '.join(report.notes)}")],
    )


def _gate_row(series: HistorySeries) -> GateRow:
    """Inputs come last in its name, which a dashboard may cut."""
    inputs = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in series.shapes.items())
    where = f"{series.contract.name}, {series.device}, {series.backend}"
    name = f"trtopt {series.mode}, {series.engine}, {where}: {inputs}"
    ms = tuple(run.main_ms for run in series.runs[-1:])
    if series.verdict != "SLOWER":
        return GateRow(name, _OPEN.get(series.verdict, "ok"), series.reason, ms)
    slower = [change for change in series.changes if change.ratio > 1] or series.changes
    return GateRow(name, "slower", f"{series.reason}; {_causes_text(slower[-1])}", ms)


def _figures(report: HistoryReport) -> Iterator[Row]:
    """A row for each run, with the columns of all."""
    names = dict.fromkeys(name for one in report.series for run in one.runs for name in run.figures)
    for one in report.series:
        for run in one.runs:
            figures = {f"{name.replace(' ', '_')}_ms": run.figures.get(name) for name in names}
            yield {**cells_of(one), "file": run.file, "created": run.created, **figures}


def _parts(report: HistoryReport) -> Iterator[Block]:
    columns: list[Column[HistorySeries]] = [
        Column("engine", lambda one: f"{one.engine}, {one.mode}", fit="fold"),
        Column("batch", lambda one: one.batch, "d"),
        Column("device", lambda one: one.device, fit="fold"),
        Column("contract", lambda one: one.contract.name, face="page"),
        Column("runs", lambda one: len(one.runs), "d"),
        Column("ms", lambda one: one.runs[-1].main_ms if one.runs else None, ".4g"),
        Column("newest runs", _sparkline, face="terminal"),
        Column("newest", lambda one: one.verdict),
    ]
    yield table("", columns, report.series, caption="ms: the newest run's median, or time by throughput")
    if changes := [(one, change) for one in report.series for change in one.changes]:
        changed: list[Column[tuple[HistorySeries, HistoryChange]]] = [
            Column("engine", lambda row: f"{row[0].engine}, {row[0].mode}", fit="fold"),
            Column("from the run of", lambda row: row[1].created[:16]),
            Column("change", lambda row: f"{row[1].figure} {row[1].ratio - 1:+.1%}"),
            Column("interval", lambda row: f"{row[1].low - 1:+.1%} to {row[1].high - 1:+.1%}"),
            Column("what changed there", lambda row: _causes_text(row[1]), fit="fold"),
        ]
        yield table("Changes", changed, changes)
    yield from map(_chart, filter(lambda one: one.runs, report.series))


def _causes_text(change: HistoryChange) -> str:
    found = [f"{one.what}: {one.before or 'none'} → {one.after or 'none'}" for one in change.causes]
    return "; ".join(found) or "unknown: nothing that results record"


def _sparkline(series: HistorySeries) -> str:
    """The main figure of the newest runs, a bar each; a change begins with a mark."""
    shown = series.runs[-_RUNS_SHOWN:]
    figures = [run.main_ms for run in shown]
    low, high = min(figures, default=0.0), max(figures, default=0.0)
    begun = {change.file for change in series.changes}
    bars = [_BARS[round((len(_BARS) - 1) * (one - low) / ((high - low) or 1))] for one in figures]
    return "".join(f"│{bar}" if run.file in begun else bar for bar, run in zip(bars, shown, strict=True))


def _chart(series: HistorySeries) -> Chart:
    figure = next(iter(series.runs[0].figures))
    rows = [
        {"run": run.created, "place": place, "ms": run.main_ms} for place, run in enumerate(series.runs, 1)
    ]
    places = {run.file: place for place, run in enumerate(series.runs, 1)}
    begun = [
        {"place": places[change.file] - 0.5, "change": f"{change.figure} {change.ratio - 1:+.1%}",
         "cause": _causes_text(change)}
        for change in series.changes
    ]  # fmt: skip
    says = (Channel("run"), Channel("ms", "ms", ".4g"))
    ticks = list(range(1, len(rows) + 1, -(-len(rows) // _TICKS)))  # Vega's own have fractions
    x = Channel("place", "run", "d", more={"axis": {"values": ticks, "format": "d"}})
    y = Channel("ms", "ms", ".4g", "ms (does not start at zero)", more={"scale": {"zero": False}})
    return chart(
        f"{series.engine}, {series.mode}: {figure} of {counted(len(rows), 'run')} on {series.device}",
        rows,
        says,
        marks("line", x=x, y=y, point=True),
        marks("rule", begun, (Channel("change"), Channel("cause")), x=x, strokeDash=[4, 4]),
        text=f"{figure} by run; {'; '.join(str(row['change']) for row in begun) or 'no change'}",
    )
