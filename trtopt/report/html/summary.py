"""The most important figures and warnings."""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.measure.analysis.findings import untrustworthy
from trtopt.measure.statistics.summaries import percentile, throughput
from trtopt.records import BenchPoint, Collected, EngineProfile
from trtopt.report.html.blocks import (
    Block,
    Cell,
    Column,
    Figure,
    Figures,
    Lines,
    Panel,
    Section,
    Table,
    known_columns,
)
from trtopt.report.html.latency import result_name, sampled
from trtopt.report.html.layers import engine_panels
from trtopt.report.names import nodes_text
from trtopt.report.profile import mib, receipt_lines, roofline_lines

_UNKNOWN = "unknown"  # the receipt's name of an unknown type
_BATCHES = (
    Column("batch", "number"),
    *(Column(name, "number", 3) for name in ("p50 ms", "p99 ms")),
    Column("samples/s", "number"),
    *(Column(name, "number", 3) for name in ("layers ms", "floor ms")),
    *(Column(name, "number", 2) for name in ("peak MiB", "engine MiB")),
)


def summary_section(collected: Collected) -> Section:
    """Headline figures, one row per batch size, and warnings."""
    figures = [*_measured(collected), *_inside(collected)]
    blocks: list[Block] = [Figures(figures), *_by_batch(collected), Lines(list(_remarks(collected)))]
    return Section("summary", "Summary", [Panel("", blocks)])


def _measured(collected: Collected) -> Iterator[Figure]:
    points = [point for report in collected.results.values() for point in sampled(report)]
    if not points:
        return
    quickest = min(points, key=_p50)
    yield Figure("lowest median latency", f"{_p50(quickest):.3f} ms", _terms(quickest))
    busiest = max(points, key=lambda point: _rate(point) or 0.0)
    yield Figure("highest throughput", f"{_rate(busiest) or 0.0:,.0f} samples/s", _terms(busiest))


def _terms(point: BenchPoint) -> str:
    return f"batch {point.batch}, {point.latency.contract.name}"


def _inside(collected: Collected) -> Iterator[Figure]:
    """Of the largest batch size: there the device is busiest."""
    panels = engine_panels(collected)
    if not panels:
        return
    label, _, engine = max(panels, key=lambda panel: panel[2].batch)
    timed = [layer for layer in engine.layers if layer.ms]
    if timed:
        slowest = max(timed, key=lambda layer: layer.ms or 0.0)
        share = (slowest.ms or 0.0) / engine.sum_ms
        yield Figure("slowest layer", f"{share:.0%} of the time", f"{label}: {nodes_text(slowest)}")
    floor = engine.roofline.floor_ms
    if floor and engine.roofline.measured_ms:
        times = engine.roofline.measured_ms / floor
        yield Figure("layers above their floor", f"{times:.1f} ×", f"{label}: {floor:.3f} ms at least")
    ran = engine.receipt.time_ran or engine.receipt.weights_ran
    dtype, share = max(ran.items(), key=lambda item: item[1], default=(_UNKNOWN, 0.0))
    if dtype != _UNKNOWN:
        of = "time" if engine.receipt.time_ran else "weights"
        yield Figure("type that ran most", dtype, f"{label}: {share:.0%} of the {of}")
    if engine.memory is not None:
        yield Figure("memory peak", mib(engine.memory.peak_bytes), f"{label}: {engine.memory.peak_phase}")


def _by_batch(collected: Collected) -> list[Table]:
    """Each figure from the first file that has it; the title names these files."""
    points: dict[int, BenchPoint] = {}
    for report in collected.results.values():
        for point in sampled(report):
            points.setdefault(point.batch, point)
    engines: dict[int, EngineProfile] = {}
    for _, _, engine in engine_panels(collected):
        engines.setdefault(engine.batch, engine)
    sizes = _sizes(collected)
    batches = sorted({*points, *engines, *sizes})
    if not batches:
        return []
    sources = [result_name(file, report) for file, report in list(collected.results.items())[:1]]
    title = f"By batch size ({'; '.join([*sources, *list(collected.profiles)[:1]]) or 'the manifest'})"
    rows: list[list[Cell]] = [
        [batch, *_latencies(points.get(batch)), *_layers(engines.get(batch)), sizes.get(batch)]
        for batch in batches
    ]
    return [Table(title, *known_columns(_BATCHES, rows))]


def _sizes(collected: Collected) -> dict[int, float]:
    """MiB by batch size, of engines built for a single one."""
    if collected.manifest is None:
        return {}
    return {
        engine.plan.batch.opt[0]: engine.size_bytes / 2**20
        for engine in collected.manifest.engines
        if engine.plan.batch.is_fixed
    }


def _latencies(point: BenchPoint | None) -> list[Cell]:
    if point is None:
        return [None, None, None]
    return [_p50(point), percentile(point.latency.samples.latency_ms, 99.0), _rate(point)]


def _layers(engine: EngineProfile | None) -> list[Cell]:
    if engine is None:
        return [None, None, None]
    peak = engine.memory.peak_bytes / 2**20 if engine.memory is not None else None
    return [engine.sum_ms or None, engine.roofline.floor_ms, peak]


def _p50(point: BenchPoint) -> float:
    median = percentile(point.latency.samples.latency_ms, 50.0)
    assert median is not None  # any value at all supports it
    return median


def _rate(point: BenchPoint) -> float | None:
    samples = (point.throughput or point.latency).samples
    return throughput(samples, point.batch).samples_per_s if samples.start_ms else None


def _remarks(collected: Collected) -> Iterator[str]:
    for file, report in collected.results.items():
        for point in report.points:
            if untrustworthy(point):
                yield f"{file}: batch {point.batch} is not trustworthy: see Latency for the reasons"
    yield from collected.notes
    for file, profile in collected.profiles.items():
        yield from (f"{file}: not known: {text}" for text in profile.missing)
    for label, _, engine in engine_panels(collected):
        for line in roofline_lines(engine)[1:]:
            yield f"{label}: {line.strip()}"
        for line in receipt_lines(engine.receipt)[1:]:
            yield f"{label}: {line.strip()}"
