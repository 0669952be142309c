"""A measurement: latencies and rates by batch size, loads, starts, layers, memory; what they are worth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from trtopt.measure.analysis.findings import (
    UNSTABLE,
    clocks_text,
    doubts_of,
    hints_of,
    is_unsteady,
    loads_of,
    measurements_of,
    remarks,
    trust_of,
)
from trtopt.measure.load.arrivals import achieved_rate, keeps_up, offered_rate
from trtopt.measure.statistics.intervals import percentile_interval
from trtopt.measure.statistics.summaries import FIGURES, figures_of, percentile, summarise
from trtopt.records import (
    STAGES,
    START_PHASES,
    Backend,
    BenchPoint,
    BenchReport,
    ColdStarts,
    DeviceInfo,
    LayerPass,
    LoadPass,
    LoadSearch,
    MemoryPass,
    RateProbe,
    Trust,
)
from trtopt.records.base import Row
from trtopt.report.charts import Channel, chart, listed, marks
from trtopt.report.view import (
    Block,
    Chart,
    Column,
    Late,
    Lines,
    Note,
    Severity,
    Spec,
    Table,
    View,
    columns_of,
    grouped,
    mib,
    mib_text,
    plain,
    shown,
    table,
    view_of,
)
from trtopt.targets import DISPLAYED

_TOP_LAYERS = 10
_LAZY_SHARE = 0.1
"""Of the time to the first output, from which on late loading of kernels is worth a line."""

_TO_OUTPUT = "to the first output"
_BINS = 60
_WIDTHS = 5
_CELLS = 7
_HEIGHTS = "▁▂▃▄▅▆▇█"
"""The first is of no query."""

_Row = tuple[BenchPoint, dict[str, float | None]]


@view_of.register
def bench_view(report: BenchReport, subject: str = "") -> View:
    """The best figures in the title, a row per batch size, then loads, starts, layers and memory.

    `subject` names what was measured.
    """
    rows = [(point, figures_of(point)) for point in report.points]
    where = f"{subject} on {where_text(report)}" if subject else where_text(report)
    return View(
        where + _best(rows),
        Late(lambda: _parts(report, rows)),
        Late(lambda: bench_notes(report)),
        rows=(_figures(point, found) for point, found in rows),
    )


def _parts(report: BenchReport, rows: Sequence[_Row]) -> Iterator[Block]:
    yield _latencies(report, rows)
    yield from _curve(rows)
    yield from _histograms(report)
    yield from _loads(report.points)
    for point in report.points:
        if (cold := point.cold_start) is not None and cold.starts:
            yield _cold_starts(point.batch, cold)
            yield Lines(cold_start_lines(point.batch, cold))
    yield from (_layers(point.batch, point.layers) for point in report.points if point.layers is not None)
    traced = [(point.batch, point.memory) for point in report.points if point.memory is not None]
    if traced:
        yield _memory(traced)
    taken = [one for point in report.points for one in measurements_of(point)]
    clocks = [clocks_text(taken)] if taken else []
    yield Lines([*map(_known, report.points), *clocks], is_detail=True)


def _figures(point: BenchPoint, found: dict[str, float | None]) -> Row:
    figures = {name.lower().replace(" ", "_").replace("/", "_per_"): value for name, value in found.items()}
    engine, failure = point.latency.engine.path, point.failure
    return {"batch": point.batch, **figures, "engine": engine, "failure": failure}


def backend_text(backend: Backend) -> str:
    """The library's own name and its version."""
    return f"{DISPLAYED.get(backend.name, backend.name)} {backend.version}"


def where_text(report: BenchReport) -> str:
    """The library and the device, such as `ONNX Runtime 1.32 (CPU)`."""
    device = report.environment.device
    return f"{backend_text(report.environment.backend)} ({'CPU' if device.kind == 'cpu' else device.name})"


def _best(rows: Sequence[_Row]) -> str:
    """`: best 122,878 samples/s at batch 32; 0.026 ms p50 at batch 1`."""
    rates = [(rate, point.batch) for point, found in rows if (rate := found["samples/s"]) is not None]
    times = [(p50, point.batch) for point, found in rows if (p50 := found["p50 ms"]) is not None]
    parts = []
    if rates:
        rate, batch = max(rates)
        parts.append(f"{'best ' if len(rates) > 1 else ''}{rate:,.0f} samples/s at batch {batch}")
    if times:
        parts.append("{:.3f} ms p50 at batch {}".format(*min(times)))
    return f": {'; '.join(parts)}" if parts else ""


def _latencies(report: BenchReport, rows: Sequence[_Row]) -> Table:
    device = report.environment.device
    counts = sorted({len(point.latency.samples.start_ms) for point, _ in rows} or {0})
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    columns: list[Column[_Row]] = [
        Column("batch", lambda row: f"{row[0].batch}{trust_of(row[0], device).mark}", ""),
        *map(_figure, FIGURES),
        Column("queries", lambda row: len(row[0].latency.samples.start_ms), ",", face="page"),
        Column("latency", lambda row: _bars(row[0], device), fit="cut", is_optional=True),
    ]
    clock = "by the host's clock" if device.kind == "cpu" else "of device events"
    caption = (
        f"latency: host clock, one query in flight, {span} queries per batch; compute, H2D, D2H: medians "
        f"{clock}, in separate queries; "
        "rates: measured with the contract's queue"
    )
    return table("", columns, rows, caption=caption)


def _curve(rows: Sequence[_Row]) -> Iterator[Chart]:
    """Throughput as bars, median latency as a line, over several batch sizes; both axes from zero."""
    drawn: list[dict[str, Any]] = [
        {"batch": point.batch, **found} for point, found in rows if found["p50 ms"]
    ]
    if len(drawn) < 2:
        return
    batch = Channel(
        "batch", "batch", "d", "batch size, samples", more={"type": "ordinal", "axis": {"labelAngle": 0}}
    )
    p50 = Channel("p50 ms", "ms", ".3f", "median, ms (line)", more={"axis": {"orient": "left"}})
    p99 = Channel("p99 ms", "ms p99", ".3f")
    on_right = {"axis": {"orient": "right", "grid": False}}
    rate = Channel("samples/s", "samples/s", ",.0f", "samples/s (bars)", more=on_right)
    bars = marks("bar", opacity=0.6, width={"band": 0.55}, x=batch, y=rate)
    line = marks("line", style="overlay", point={"size": 45, "style": "overlay"}, x=batch, y=p50)
    title, says = "Latency and throughput by batch size", [batch, p50, p99, rate]
    yield chart(title, drawn, says, bars, line, height=230, resolve={"scale": {"y": "independent"}})


def _bars(point: BenchPoint, device: DeviceInfo) -> str | None:
    """An unsteady row's histogram in one cell: the last bar has all slower ones."""
    latency = point.latency.samples.latency_ms
    if not latency or not is_unsteady(point, device):
        return None
    low, top = _drawn_range(latency)
    counts, _ = np.histogram(np.minimum(latency, top), _CELLS, (low, top))
    heights = np.ceil(counts / counts.max() * (len(_HEIGHTS) - 1)).astype(int)
    return "".join(_HEIGHTS[height] for height in heights)


def _drawn_range(values: Sequence[float]) -> tuple[float, float]:
    """Up to the median plus five times the width of the middle 80 %: a few slow ones would squeeze the rest.

    Wide enough to be divided, where all are alike.
    """
    low, middle, high = np.percentile(values, (10, 50, 90))
    first = min(values)
    return first, max(first * (1 + 1e-9), min(max(values), float(middle + _WIDTHS * (high - low))))


def _histograms(report: BenchReport) -> Iterator[Chart]:
    """How often each latency was measured, at each batch size; of several those of steady rows are folded."""
    is_alone = len(report.points) == 1
    for point in report.points:
        latency = point.latency.samples.latency_ms
        if latency:
            named = {f"p{p:g}": value for p in (50, 90, 99) if (value := percentile(latency, p)) is not None}
            title = f"Batch {point.batch}: latency of {len(latency):,} queries"
            is_open = is_alone or is_unsteady(point, report.environment.device)
            yield replace(histogram(title, latency, named), is_folded=not is_open)


def histogram(title: str, values: Sequence[float], named: Mapping[str, float]) -> Chart:
    """Counts of values in ms, with named values marked."""
    array, (first, top) = np.asarray(values), _drawn_range(values)
    undrawn = int((array > top).sum())
    counts, edges = np.histogram(array, _BINS, (first, top))
    rows = [
        {"from": float(low), "to": float(high), "queries": int(count)}
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]
    lines = [{"what": what, "ms": value} for what, value in named.items() if value <= top]
    more = f"; not drawn: {undrawn} slower, up to {float(array.max()):.3f} ms" if undrawn else ""
    axis = "latency, ms (does not start at zero)"
    start = Channel("from", "from ms", ".4f", axis, more={"scale": {"zero": False, "nice": False}})
    queries = Channel("queries", "queries", "d")
    ms = Channel("ms", "ms", ".4f", axis)
    style: Spec = {"align": "left", "dx": 3, "baseline": "top"}
    return chart(
        title + more,
        rows,
        [start, Channel("to", "to ms", ".4f"), queries],
        marks("rect", x=start, x2={"field": "to"}, y=queries, y2={"datum": 0}),
        marks("rule", lines, x=ms, strokeDash=[4, 3]),
        marks("text", lines, x=ms, y={"value": 0}, text={"field": "what"}, **style),
        text=listed([f"{what} {value:.3f} ms" for what, value in named.items()]),
        height=190,
        is_small=True,
    )


def _figure(name: str) -> Column[_Row]:
    return Column(
        name,
        lambda row: row[1][name],
        ".3f" if name.endswith(" ms") else ",.0f",
        "page" if name == "queries/s" else "",
        is_optional=name in STAGES,
    )


def _known(point: BenchPoint) -> str:
    """How well its median and its p99 are known."""
    latency = point.latency.samples.latency_ms
    supported = [p for p in (50.0, 99.0) if percentile(latency, p) is not None]
    intervals = [f"p{p:g} {percentile_interval(latency, p).text}" for p in supported]
    return f"batch {point.batch}: {'; '.join(intervals) or 'no latency counts'}"


def _layers(batch: int, layers: LayerPass) -> Table:
    medians = sorted(((summarise(layer.ms).median, layer.name) for layer in layers.layers), reverse=True)
    total = sum(ms for ms, _ in medians)
    title = (
        f"batch {batch}: slowest of {len(medians)} layers (medians of {layers.runs} profiled runs, "
        f"{total:.3f} ms in all)"
    )
    columns: list[Column[tuple[float, str]]] = [
        Column("ms", lambda row: row[0], ".4f"),
        Column("share", lambda row: row[0] / total if total else None, ".1%"),
        Column("layer", lambda row: row[1], fit="cut"),
    ]
    return table(title, columns, medians, top=_TOP_LAYERS)


def _memory(traced: Sequence[tuple[int, MemoryPass]]) -> Table:
    columns: list[Column[tuple[int, MemoryPass]]] = [
        Column("batch", lambda row: row[0], ""),
        Column("peak MiB", lambda row: mib(row[1].peak_bytes), ".1f"),
        Column("calls", lambda row: len(row[1].events), ","),
        Column("inputs and outputs MiB", lambda row: mib(row[1].buffers_bytes), ".1f"),
        Column("seen by the driver MiB", lambda row: mib(row[1].driver_used_bytes), ".1f"),
    ]
    return table(
        "device memory: TensorRT's allocations, buffers, and growth seen by the driver", columns, traced
    )


# ── loads ───────────────────────────────────────────────────────────────────────────────────────────────


def _loads(points: Sequence[BenchPoint]) -> Iterator[Block]:
    """Searches first, then one row per load, and remarks."""
    for point in points:
        if (search := point.load_search) is not None:
            if search.probes:
                yield from _probes(point.batch, search)
            yield Lines([search_line(point.batch, search)])
    loads = [(point.batch, load) for point in points for load in loads_of(point)]
    if not loads:
        return
    columns: list[Column[tuple[int, LoadPass]]] = [
        Column("batch", lambda row: row[0], ""),
        Column("offered/s", lambda row: offered_rate(row[1]), ".4g"),
        Column("achieved/s", lambda row: achieved_rate(row[1]), ".4g"),
        *columns_of(
            ("p50 ms", "p95 ms", "p99 ms"),
            lambda row: [percentile(row[1].latency_ms, p) for p in (50, 95, 99)],
            ".3f",
        ),
        *columns_of(
            ("wait p50", "wait p99"), lambda row: [percentile(row[1].waiting_ms, p) for p in (50, 99)], ".3f"
        ),
        Column("serve p50", lambda row: percentile(row[1].service_ms, 50), ".3f"),
    ]
    title = "under load: one request is one query of the whole batch"
    caption = "p50 to p99: from the planned arrival to the output; wait: until enqueued; serve: from then on"
    yield table(title, columns, loads, caption=caption)
    yield Lines([line for batch, load in loads for line in load_lines(batch, load)], is_detail=True)


def load_lines(batch: int, load: LoadPass) -> list[str]:
    """Remarks on a load: how requests arrived, how late the host was, whether the target kept up."""
    served, lag = len(load.samples.start_ms), summarise(load.lag_ms)
    seed = f", seed {load.seed}" if load.arrivals == "poisson" else ""
    lines = [
        f"{load.arrived:,} requests, {load.arrivals} arrivals at {load.rate:g}/s for {load.window_s:.3g} s"
        f"{seed}; at most {load.most_waiting:,} were waiting",
        f"the host enqueued them late by {lag.median:.3f} ms in the median and {lag.maximum:.3f} ms at "
        "most, which is part of their latency",
    ]
    lines += load.untrustworthy
    if load.failure is not None:
        lines.append(
            f"the device failed ({load.failure}): the figures are of the {served:,} requests served by then"
        )
    elif not keeps_up(load):
        offered, achieved = (shown(rate, ".4g") for rate in (offered_rate(load), achieved_rate(load)))
        text = f"the target cannot keep up: {offered} requests/s arrive, it takes {achieved}"
        if served < load.arrived:
            text += f"; {load.arrived - served:,} were never served ({load.stop_reason})"
        lines.append(f"{text}. Latency grows as long as the load lasts")
    return [f"batch {batch}: {line}" for line in lines]


def _probes(batch: int, search: LoadSearch) -> Iterator[Block]:
    seed = f", seed {search.seed}" if search.arrivals == "poisson" else ""
    slowed = "; !: the device was slowed" if any(probe.untrustworthy for probe in search.probes) else ""
    columns: list[Column[RateProbe]] = [
        Column("rate/s", lambda probe: probe.rate, ".4g"),
        Column("requests", lambda probe: probe.requests, ","),
        Column(f"{search.goal.partition('=')[0]} ms", lambda probe: probe.latency_ms, ".3f"),
        Column("95 % interval", _interval, ""),
        Column("achieved/s", lambda probe: probe.achieved_rate, ".4g"),
        Column(
            "met", lambda probe: ("yes" if probe.kept else "no") + ("!" if probe.untrustworthy else ""), ""
        ),
    ]
    title = f"batch {batch}: rates tried for {search.goal}, {search.arrivals} arrivals{seed}"
    yield table(title, columns, search.probes)
    yield Lines([f"a rate that certainly misses it is stopped early{slowed}"], "dim")


def _interval(probe: RateProbe) -> str | None:
    if probe.latency_ms is None:
        return None
    return " to ".join("?" if bound is None else f"{bound:.3f}" for bound in (probe.low_ms, probe.high_ms))


def search_line(batch: int, search: LoadSearch) -> str:
    """The outcome with its uncertainty, and whether a run with other arrivals confirms it."""
    line, again = f"batch {batch}: {search.reason}", search.again
    if again is None or again.latency_ms is None:
        return line
    outcome = "which also meets it" if again.kept else "which misses it: choose a lower rate"
    name = search.goal.partition("=")[0]
    repeat = "with other arrivals" if search.arrivals == "poisson" else "once more"
    return f"{line}; {repeat} {name} is {again.latency_ms:.3f} ms (95 %: {_interval(again)}), {outcome}"


# ── starts and pauses ───────────────────────────────────────────────────────────────────────────────────


def _cold_starts(batch: int, cold: ColdStarts) -> Table:
    by_state: dict[str, list[dict[str, float]]] = {}
    for start in cold.starts:
        phases: dict[str, float] = {_TO_OUTPUT: start.first_result_ms}
        by_state.setdefault(start.page_cache, []).append(phases | start.ms)
    columns: list[Column[str]] = [Column("phase", str)]
    for state, starts in by_state.items():
        columns.append(Column(f"{state} page cache ({len(starts)} starts)", partial(_median, starts), ".2f"))
    known = {phase for start in cold.starts for phase in start.ms}
    title = (
        f"batch {batch}: start in a fresh process, medians in ms; the engine is {mib_text(cold.engine_bytes)}"
    )
    caption = (
        "process start: Python and trtopt; the page cache held all libraries, the engine's file where warm"
    )
    rows = [*(phase for phase in START_PHASES if phase in known), _TO_OUTPUT]
    return table(title, columns, rows, caption=caption)


def _median(starts: Iterable[Mapping[str, float]], phase: str) -> float | None:
    """Of those that have the phase."""
    known = [phases[phase] for phases in starts if phase in phases]
    return median(known) if known else None


def cold_start_lines(batch: int, cold: ColdStarts) -> list[str]:
    """What was not measured, and the setting that the first inference depends on where that matters."""
    lines = [f"batch {batch}: {note}" for note in cold.notes]
    refused = {start.graph_refused for start in cold.starts if start.graph_refused is not None}
    lines += [f"batch {batch}: no graph capture: {reason}" for reason in sorted(refused)]
    first, second = (
        median(one.ms[phase] for one in cold.starts) for phase in ("first inference", "second inference")
    )
    whole = median(one.first_result_ms for one in cold.starts)
    if cold.module_loading == "LAZY" and first - second > _LAZY_SHARE * whole:
        lines.append(
            f"batch {batch}: the first inference takes {first - second:.0f} ms more than the second: "
            "kernels are loaded on first use (CUDA_MODULE_LOADING=LAZY); EAGER loads them with the library"
        )
    return lines


# ── what the figures are worth ──────────────────────────────────────────────────────────────────────────


def is_trustworthy(report: BenchReport) -> bool:
    """Whether all of its figures are trustworthy and steady."""
    return all(trust_of(point, report.environment.device) is Trust.FULL for point in report.points)


def distrust(reports: Iterable[BenchReport]) -> list[str]:
    """Why figures are not trustworthy, one line per reason."""
    found = [
        Note(Severity.FAILURE, doubt.text, point.batch)
        for report in reports
        for point in report.points
        for doubt in doubts_of(point, report.environment.device)
        if doubt.trust is Trust.NONE
    ]
    return [f"{Trust.NONE.value}: {line}" for line in grouped(found)]


def bench_notes(report: BenchReport) -> list[Note]:
    """Findings, hints and recorded notes, each once; what makes figures not trustworthy only in full."""
    notes = [note for point in report.points for taken in measurements_of(point) for note in taken.notes]
    notes += [note for point in report.points for load in loads_of(point) for note in load.notes]
    others = dict.fromkeys(note for note in notes if note not in report.notes)
    whole = (Note(Severity.DOUBT, text) for text in dict.fromkeys(report.notes))
    return [*whole, *_findings(report), *plain(others)]


def _findings(report: BenchReport) -> Iterator[Note]:
    device = report.environment.device
    for point in report.points:
        batch, doubts = point.batch, doubts_of(point, device)
        if point.failure is not None:
            yield Note(Severity.FAILURE, f"passes are missing: {point.failure}", batch)
        for load in loads_of(point):
            if load.failure is None and not keeps_up(load):
                yield Note(Severity.FAILURE, "the target cannot keep up with the load", batch)
        if doubts and doubts[0].trust is Trust.NONE:
            yield Note(Severity.DOUBT, "", batch, in_full=f"{Trust.NONE.value} ({Trust.NONE.mark})")
        unsteady = {doubt.short: doubt for doubt in doubts if doubt.trust is Trust.UNSTEADY}
        for place, doubt in enumerate(unsteady.values()):
            severity = Severity.FINDING if place else Severity.DOUBT
            text, in_full = (f"unsteady (~): {words}" for words in (doubt.short, doubt.text))
            yield Note(severity, text, batch, doubt.remedy, in_full)
        for taken in measurements_of(point):
            stream = " of one stream" if taken is point.single_stream else ""
            for remark in remarks(taken):
                text = "" if remark.short in unsteady else remark.short
                if text or not remark.short or taken is not point.latency:  # else it is said above
                    in_full = f"{taken.mode} pass{stream}: {remark.text}"
                    yield Note(Severity.FINDING, text, batch, in_full=in_full)
        for hint in hints_of(point, device):
            if hint.short != UNSTABLE:  # which is a doubt
                yield Note(Severity.HINT, hint.short, batch, hint.remedy, f"hint: {hint.text}")
