"""Records as text tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trtopt.measure.analysis.findings import loads_of, measurements_of
from trtopt.measure.statistics.summaries import summarise, throughput
from trtopt.records import (
    BenchPoint,
    BenchReport,
    EngineArtifact,
    LayerPass,
    Manifest,
    MemoryPass,
    ShapeRange,
)
from trtopt.report.load import load_parts
from trtopt.report.starting import starting_parts
from trtopt.report.tables import plain_table
from trtopt.report.trust import marked, trust_lines

_MIB = 2**20
_TOP_LAYERS = 10


def build_summary(manifest: Manifest, folder: str) -> RenderableType:
    """One row per engine, and one line that names the logs with builder warnings."""
    table = plain_table(f"{folder}: engines by {manifest.engines[0].plan.backend}")
    for name in ("engine", "batch", "size", "build", "timing cache"):
        table.add_column(name, justify="left" if name == "engine" else "right")
    for engine in manifest.engines:
        table.add_row(
            engine.path,
            _batches(engine),
            f"{engine.size_bytes / _MIB:.2f} MiB",
            f"{engine.build_seconds:.1f} s",
            _cache_use(engine),
        )
    return Group(table, *(Text(line) for line in _warning_lines(manifest)))


def _batches(engine: EngineArtifact) -> str:
    return "; ".join(_batch_range(profile.batch) for profile in engine.plan.profiles)


def _batch_range(batch: ShapeRange) -> str:
    low, best, high = batch.min[0], batch.opt[0], batch.max[0]
    return f"{low}" if low == high else f"{low} to {high}, tuned for {best}"


def _cache_use(engine: EngineArtifact) -> str:
    if engine.timing_cache_out is None:
        return "none"
    if engine.timing_cache_in is None:
        return "new"
    return "read" if engine.timing_cache_hits is None else f"{engine.timing_cache_hits} hits"


def _warning_lines(manifest: Manifest) -> list[str]:
    logs = [f"{engine.log} ({engine.warnings})" for engine in manifest.engines if engine.warnings]
    return [f"warnings from the builder are in {', '.join(logs)}"] if logs else []


_TIMES = ("p50 ms", "p90 ms", "p99 ms", "compute", "H2D", "D2H", "enqueue")
_BENCH_COLUMNS = ("batch", *_TIMES, "queries/s", "samples/s")


def bench_summary(report: BenchReport) -> RenderableType:
    """Latency with one query in flight, throughput with the contract's queue; then loads, layers, memory."""
    first = report.points[0].latency
    environment = report.environment
    title = f"{environment.backend} on {environment.device.name}, contract {first.contract.name}"
    table = plain_table(title, _caption(report))
    for name in _BENCH_COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for point in report.points:
        table.add_row(*_bench_row(point))
    parts: list[RenderableType] = [table, *load_parts(report.points), *starting_parts(report.points)]
    for point in report.points:
        if point.layers is not None:
            parts.append(_layer_table(point.batch, point.layers))
        if point.memory is not None:
            parts.append(Text(memory_line(point.batch, point.memory)))
    parts += [Text(line) for line in trust_lines(report)]
    parts += [Text(f"note: {note}") for note in _notes(report)]
    return Group(*parts)


def _caption(report: BenchReport) -> str:
    counts = sorted({len(point.latency.samples.start_ms) for point in report.points})
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    clock = "by the host's clock" if report.environment.device.kind == "cpu" else "of device events"
    return (
        f"latency: host clock, one query in flight, {span} queries per batch; "
        f"compute, H2D, D2H: medians {clock}, in separate queries; "
        "rates: measured with the contract's queue"
    )


def _bench_row(point: BenchPoint) -> list[str]:
    """One point's figures; dashes where all samples were discarded."""
    samples, stages = point.latency.samples, point.latency.stages
    latency = summarise(samples.latency_ms) if samples.start_ms else None
    rated = (point.throughput or point.latency).samples
    rate = throughput(rated, point.batch) if rated.start_ms else None
    return [
        marked(point),
        *(_ms(latency.percentiles[p] if latency else None) for p in (50.0, 90.0, 99.0)),
        *(
            _median(values)
            for values in (stages.gpu_compute_ms, stages.h2d_ms, stages.d2h_ms, samples.enqueue_ms)
        ),
        f"{rate.queries_per_s:,.0f}" if rate else "–",
        f"{rate.samples_per_s:,.0f}" if rate else "–",
    ]


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _median(values: Sequence[float]) -> str:
    return _ms(summarise(values).median) if values else "–"


def _notes(report: BenchReport) -> list[str]:
    """Every note once, the report's first."""
    notes = [note for point in report.points for m in measurements_of(point) for note in m.notes]
    notes += [note for point in report.points for load in loads_of(point) for note in load.notes]
    return list(dict.fromkeys((*report.notes, *notes)))


def _layer_table(batch: int, layers: LayerPass) -> Table:
    medians = sorted(((summarise(layer.ms).median, layer.name) for layer in layers.layers), reverse=True)
    total = sum(ms for ms, _ in medians)
    table = plain_table(
        f"batch {batch}: slowest of {len(medians)} layers (medians of {layers.runs} profiled runs, "
        f"{total:.3f} ms in all)"
    )
    for name in ("ms", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("layer", overflow="ellipsis", no_wrap=True)
    for ms, name in medians[:_TOP_LAYERS]:
        table.add_row(f"{ms:.4f}", f"{ms / total:.1%}" if total else "–", Text(name))
    return table


def memory_line(batch: int, memory: MemoryPass) -> str:
    """Peak, inputs and outputs, and the driver's view, in one line."""
    seen = "unknown" if memory.driver_used_bytes is None else f"{memory.driver_used_bytes / _MIB:.1f} MiB"
    return (
        f"batch {batch}: TensorRT's allocations peak at {memory.peak_bytes / _MIB:.1f} MiB "
        f"({len(memory.events)} calls), inputs and outputs {memory.buffers_bytes / _MIB:.1f} MiB; "
        f"growth seen by the driver: {seen}"
    )
