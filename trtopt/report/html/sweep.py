"""A sweep as a page: curves over the batch size, the Pareto front, the best point per latency bound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from trtopt.measure.analysis.sweep_choices import Choices, choices_of, is_decided_busy
from trtopt.records import SweepPoint, SweepReport
from trtopt.report.html.blocks import Block, Cell, Chart, Column, Lines, Missing, Panel, Section, Table
from trtopt.report.html.charts import lines_over, log, name, quantity, tooltip_fields, vega_lite
from trtopt.report.sweep import at_lengths, marks_of, remarks_on

_MIB = 2**20
_COLUMNS = (
    Column("point"),
    Column("front"),
    *(Column(title, "number", 3) for title in ("p50 ms", "p90 ms", "p99 ms", "busy p50 ms", "busy p99 ms")),
    Column("queries", "number"),
    Column("samples/s", "number"),
    *(Column(title, "number", 2) for title in ("W", "samples/J", "memory MiB", "engine MiB")),
    Column("build s", "number", 1),
)
_BEST = (Column("latency ≤ ms", "number", 3), Column("point"), Column("samples/s", "number"))
_CURVES = (
    ("Median latency of one query in flight", "p50", "ms"),
    ("p99 latency of one query in flight", "p99", "ms"),
    ("Throughput", "rate", "samples/s"),
    ("Samples per joule", "per_joule", "samples/J"),
    ("Memory of one context", "mib", "MiB"),
)


def sweep_sections(report: SweepReport) -> list[Section]:
    """All sections of the page, in order."""
    groups = choices_of(report)
    made = f"{report.model}, {report.terms.backend} on {report.terms.device.name}"
    contract = f"{report.terms.contract.name}, {report.created}"
    points = Table(f"{made}: {contract}", _COLUMNS, _rows(report))
    nothing = [Missing("No point has been measured.", "")]
    fronts = [Panel(_label(one), _front(report, one)) for one in groups]
    return [
        Section("points", "Points", [Panel("", [points, Lines(remarks_on(report))])]),
        Section("curves", "Curves", [Panel("", list(_curves(report)) or nothing)]),
        Section("front", "Pareto front", fronts or [Panel("", nothing)]),
    ]


def sweep_title(report: SweepReport) -> str:
    """The page's title."""
    return f"{PurePath(report.model).stem}: sweep"


def _label(choices: Choices) -> str:
    return at_lengths(choices.axes).removeprefix(" at ")


def _rows(report: SweepReport) -> list[list[Cell]]:
    marks = marks_of(report)
    return [_row(point, marks.get(point.key, "")) for point in report.points]


def _row(point: SweepPoint, mark: str) -> list[Cell]:
    latency, busy, memory = point.latency, point.busy_latency, point.memory
    return [
        point.label,
        "failed" if point.failure is not None else mark,
        *((latency.p50_ms, latency.p90_ms, latency.p99_ms) if latency else (None, None, None)),
        *((busy.p50_ms, busy.p99_ms) if busy else (None, None)),
        point.queries or None,
        point.samples_per_s,
        point.power.watts if point.power else None,
        point.samples_per_joule,
        memory.peak_bytes / _MIB if memory else None,
        point.engine_bytes / _MIB if point.engine_bytes is not None else None,
        point.build_seconds,
    ]


# ── curves ──────────────────────────────────────────────────────────────────────────────────────────────


def _curves(report: SweepReport) -> Iterator[Chart]:
    rows = [_figures(point) for point in report.measured]
    sizes = sorted({row["batch"] for row in rows})
    x = quantity("batch", "batch size", axis={"values": sizes}, **log(base=2))
    for title, field, unit in _CURVES:
        shown = [row for row in rows if row[field]]
        if shown:
            tooltip = tooltip_fields(("series", "curve", ""), ("batch", "batch", "d"), (field, unit, ",.4~f"))
            yield lines_over(title, shown, x, quantity(field, unit, **log()), "series", tooltip)


def _figures(point: SweepPoint) -> dict[str, Any]:
    latency, memory = point.latency, point.memory
    return {
        "batch": point.setting.batch,
        "series": point.label.replace(f" batch{point.setting.batch}", "", 1),
        "p50": latency.p50_ms if latency else None,
        "p99": latency.p99_ms if latency else None,
        "rate": point.samples_per_s,
        "per_joule": point.samples_per_joule,
        "mib": memory.peak_bytes / _MIB if memory else None,
    }


# ── the front ───────────────────────────────────────────────────────────────────────────────────────────


def _front(report: SweepReport, choices: Choices) -> list[Block]:
    busy = is_decided_busy(report)
    latency = "p99 under full load" if busy else "p99"
    front = {point.key for point in choices.front}
    rows = [
        {
            "point": point.label,
            "ms": cost,
            "rate": point.samples_per_s,
            "what": "knee" if point == choices.knee else "on the front" if point.key in front else "beaten",
        }
        for point, cost in zip(choices.points, choices.costs_ms, strict=True)
    ]
    encoding = {
        "x": quantity("ms", f"{latency} ms", **log()),
        "y": quantity("rate", "samples/s", **log()),
        "tooltip": tooltip_fields(
            ("point", "point", ""), ("ms", f"{latency} ms", ".4f"), ("rate", "samples/s", ",.4~f")
        ),
    }
    line = {
        "mark": {"type": "line"},
        "transform": [{"filter": "datum.what != 'beaten'"}],
        "encoding": encoding,
    }
    dots = {
        "mark": {"type": "point", "filled": True, "size": 60},
        "encoding": {**encoding, "color": name("what", sort=None, legend={"orient": "bottom"})},
    }
    bests: list[list[Cell]] = [[bound, point.label, point.samples_per_s] for bound, point in choices.bests]
    return [
        Chart(f"Throughput against {latency}", vega_lite(rows, layer=[line, dots]), height=320),
        Table(f"Best under a bound on {latency}", _BEST, bests),
    ]
