"""Latency distributions, and latency and throughput by batch size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from trtopt.measure.analysis.findings import is_on_host, loads_of
from trtopt.measure.load.arrivals import achieved_rate, offered_rate
from trtopt.measure.statistics.summaries import figures_of, percentile
from trtopt.records import BenchPoint, BenchReport, Collected
from trtopt.report.html.blocks import Block, Cell, Chart, Column, Lines, Missing, Panel, Section, Spec, Table
from trtopt.report.html.charts import (
    LEGEND,
    histogram,
    lines_over,
    listed,
    log,
    name,
    quantity,
    tooltip_fields,
)
from trtopt.report.html.colours import batch_scale
from trtopt.report.html.deployment import rate_of, sampled
from trtopt.report.load import load_lines, search_line
from trtopt.report.trust import marked

_CURVE = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9)
_TAILS = (0.0, 50.0, 90.0, 99.0, 99.9)
_COLUMNS = (
    Column("batch"),
    *(Column(name, "number", 3) for name in ("p50 ms", "p90 ms", "p99 ms", "compute ms", "H2D ms", "D2H ms")),
    Column("enqueue ms", "number", 3),
    *(Column(name, "number") for name in ("queries/s", "samples/s", "queries")),
)
_LOAD_COLUMNS = (
    Column("batch", "number"),
    *(Column(name, "number", 1) for name in ("offered/s", "achieved/s")),
    *(Column(name, "number", 3) for name in ("p50 ms", "p95 ms", "p99 ms", "wait p50 ms", "wait p99 ms")),
)


def latency_section(collected: Collected, command: str) -> Section | Missing:
    """A panel for each result file."""
    scale = colours_of_batches(collected)
    panels = [
        Panel(result_name(file, report), list(_blocks(report, scale)))
        for file, report in collected.results.items()
    ]
    return Section("latency", "Latency distribution", panels) if panels else Missing("latency", command)


def colours_of_batches(collected: Collected) -> Spec:
    """One colour per batch size of the folder, for all charts of the page."""
    measured = [point.batch for report in collected.results.values() for point in report.points]
    profiled = [engine.batch for report in collected.profiles.values() for engine in report.engines]
    return batch_scale([*measured, *profiled])


def colour_of(scale: Spec, batch: int) -> str:
    """A batch size's colour on a scale of `colours_of_batches`."""
    colour: str = scale["range"][scale["domain"].index(f"batch {batch}")]
    return colour


def result_name(file: str, report: BenchReport) -> str:
    """A result file's name on the page."""
    return f"{file}: {report.points[0].latency.contract.name}, {report.environment.backend.name}"


def _blocks(report: BenchReport, scale: Spec) -> Iterator[Block]:
    clock = "by the host's clock" if is_on_host(report) else "of device events"
    title = f"Latency of one query in flight, host clock; compute, H2D, D2H: medians {clock}"
    rows = [_row(point, marked(point, on_host=is_on_host(report))) for point in report.points]
    yield Table(title, _COLUMNS, rows)
    points = sampled(report)
    if points:
        yield _percentiles(points, scale)
    for point in points:
        latency = point.latency.samples.latency_ms
        marks = {
            f"p{p:g}": value for p in (50.0, 90.0, 99.0) if (value := percentile(latency, p)) is not None
        }
        title = f"Batch {point.batch}: latency of {len(latency):,} queries"
        yield histogram(title, latency, marks, colour_of(scale, point.batch))
    yield from _loads(report)


def _row(point: BenchPoint, batch: str) -> list[Cell]:
    figures, queries = figures_of(point), len(point.latency.samples.start_ms)
    rates = (figures.rate.queries_per_s, figures.rate.samples_per_s) if figures.rate else (None, None)
    return [batch, *figures.latencies, *figures.stages, *rates, queries]


def _tail(p: float) -> float:
    """A percentile's position on an axis that gives each further 9 the same length."""
    return -math.log10(1 - p / 100)


def _percentiles(points: Sequence[BenchPoint], scale: Spec) -> Chart:
    rows = [
        {"batch": f"batch {point.batch}", "p": p, "tail": _tail(p), "ms": value}
        for point in points
        for p in _CURVE
        if (value := percentile(point.latency.samples.latency_ms, p)) is not None
    ]
    labels = " : ".join(f"datum.value < {_tail(p) + 0.01:.3f} ? 'p{p:g}'" for p in _TAILS) + " : ''"
    axis = {"values": [_tail(p) for p in _TAILS], "labelExpr": labels}
    return lines_over(
        "Latency by percentile",
        listed([f"{row['batch']}, p{row['p']:g}: {row['ms']:.3f} ms" for row in rows if row["p"] in _TAILS]),
        rows,
        quantity("tail", "percentile (each further 9 takes the same length)", axis=axis),
        quantity("ms", "latency, ms (log scale)", **log()),
        name("batch", sort=None, scale=scale, legend=LEGEND),
        tooltip_fields(("batch", "engine", ""), ("p", "percentile", "g"), ("ms", "ms", ".4f")),
    )


def _loads(report: BenchReport) -> Iterator[Block]:
    loads = [(point.batch, load) for point in report.points for load in loads_of(point)]
    lines = [
        search_line(point.batch, point.load_search)
        for point in report.points
        if point.load_search is not None
    ]
    if loads:
        rows: list[list[Cell]] = [
            [
                batch,
                offered_rate(load),
                achieved_rate(load),
                *(percentile(load.latency_ms, p) for p in (50, 95, 99)),
                *(percentile(load.waiting_ms, p) for p in (50, 99)),
            ]
            for batch, load in loads
        ]
        yield Table("Under load, from the planned arrival to the output", _LOAD_COLUMNS, rows)
        lines += [line for batch, load in loads for line in load_lines(batch, load)]
    yield Lines(lines)


# ── batch curves ────────────────────────────────────────────────────────────────────────────────────────


def batch_section(collected: Collected, command: str) -> Section | Missing:
    """Every result file as a line over the batch size."""
    rows = [
        {"batch": point.batch, "series": result_name(file, report), **_rates(point)}
        for file, report in collected.results.items()
        for point in sampled(report)
    ]
    if len({row["batch"] for row in rows}) < 2:
        return Missing("curves over the batch size", command)
    x = quantity(
        "batch",
        "batch size, samples (log scale)",
        axis={"values": sorted({row["batch"] for row in rows})},
        **log(base=2),
    )
    charts = [_curve("Median latency", rows, x, "p50", "ms"), _curve("p99 latency", rows, x, "p99", "ms")]
    charts.append(_curve("Throughput", rows, x, "samples_per_s", "samples/s"))
    charts.append(_curve("Time of one sample at the best rate", rows, x, "us", "µs"))
    return Section("batches", "Curves over the batch size", [Panel("", charts)])


def _rates(point: BenchPoint) -> dict[str, Any]:
    latency = point.latency.samples.latency_ms
    rate = rate_of(point)
    return {
        "p50": percentile(latency, 50.0),
        "p99": percentile(latency, 99.0),
        "samples_per_s": rate,
        "us": 1e6 / rate if rate else None,
    }


def _curve(title: str, rows: Sequence[dict[str, Any]], x: Spec, field: str, unit: str) -> Chart:
    shown = [row for row in rows if row[field] is not None]
    several = len({row["series"] for row in rows}) > 1
    text = listed(
        [
            (f"{row['series']}, " if several else "") + f"batch {row['batch']}: {row[field]:,.4g} {unit}"
            for row in shown
        ]
    )
    tooltip = tooltip_fields(("series", "file", ""), ("batch", "batch", "d"), (field, unit, ",.4~f"))
    series = name("series", sort=None, legend={**LEGEND, "columns": 1})
    return lines_over(title, text, shown, x, quantity(field, f"{unit} (log scale)", **log()), series, tooltip)
