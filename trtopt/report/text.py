"""Records as text tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trtopt.measure.analysis.findings import is_on_host
from trtopt.measure.statistics.intervals import percentile_interval
from trtopt.measure.statistics.summaries import PointFigures, figures_of, percentile, summarise
from trtopt.records import (
    Backend,
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
from trtopt.report.tables import plain_table, shown, titled
from trtopt.report.trust import marked, trust_lines

_MIB = 2**20
_TOP_LAYERS = 10


_LIBRARIES = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT-RTX", "onnxruntime": "ONNX Runtime"}


def backend_text(backend: Backend) -> str:
    """The library's own name and its version."""
    return f"{_LIBRARIES.get(backend.name, backend.name)} {backend.version}"


def build_summary(manifest: Manifest, folder: str) -> RenderableType:
    """One row per engine, and one line that names the logs with builder warnings."""
    table = plain_table("engine", "batch", "size MiB", "build s", "timing cache", left=("engine",))
    for engine in manifest.engines:
        table.add_row(
            engine.path,
            _batches(engine),
            f"{engine.size_bytes / _MIB:.2f}",
            f"{engine.build_seconds:.1f}",
            _cache_use(engine),
        )
    count = len(manifest.engines)
    engines = f"{count} engine{'s' if count > 1 else ''} by {backend_text(manifest.engines[0].plan.backend)}"
    return Group(titled(f"{folder}: {engines}", table), *(Text(line) for line in _warning_lines(manifest)))


def engine_notes(manifest: Manifest) -> list[str]:
    """What the builds of the engines noted, each once."""
    return list(dict.fromkeys(note for engine in manifest.engines for note in engine.notes))


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


_Row = tuple[BenchPoint, PointFigures]
_STAGES = ("compute ms", "H2D ms", "D2H ms", "enqueue ms")


def bench_summary(report: BenchReport, subject: str = "", *, verbose: bool = False) -> RenderableType:
    """The best figures in one line, a row per batch size, loads, layers and memory.

    `subject` names what was measured. `verbose` adds how it was measured and every remark with its figures.
    """
    rows = [(point, figures_of(point)) for point in report.points]
    title = f"{subject} on {where_text(report)}" if subject else where_text(report)
    parts: list[RenderableType] = [
        titled(
            title + _best(rows),
            _bench_table(rows, on_host=is_on_host(report)),
            _caption(report) if verbose else "",
        ),
        *load_parts(report.points, verbose=verbose),
        *starting_parts(report.points, verbose=verbose),
    ]
    parts += [_layer_table(point.batch, point.layers) for point in report.points if point.layers is not None]
    if traced := [(point.batch, point.memory) for point in report.points if point.memory is not None]:
        parts.append(_memory_table(traced))
    lines = [*map(_known, report.points), *trust_lines(report)] if verbose else ()
    return Group(*parts, *map(Text, lines))


def where_text(report: BenchReport) -> str:
    """The library and the device, such as `ONNX Runtime 1.32 (CPU)`."""
    device = report.environment.device
    return f"{backend_text(report.environment.backend)} ({'CPU' if device.kind == 'cpu' else device.name})"


def _best(rows: Sequence[_Row]) -> str:
    """`: best 122,878 samples/s at batch 32; 0.026 ms p50 at batch 1`."""
    rates = [(found.rate.samples_per_s, point.batch) for point, found in rows if found.rate is not None]
    times = [(p50, point.batch) for point, found in rows if (p50 := found.latencies[0]) is not None]
    parts = []
    if rates:
        rate, batch = max(rates)
        parts.append(f"{'best ' if len(rates) > 1 else ''}{rate:,.0f} samples/s at batch {batch}")
    if times:
        parts.append("{:.3f} ms p50 at batch {}".format(*min(times)))
    return f": {'; '.join(parts)}" if parts else ""


def _bench_table(rows: Sequence[_Row], *, on_host: bool) -> Table:
    """Stages that no point has are left out."""
    known = [
        place for place in range(len(_STAGES)) if any(found.stages[place] is not None for _, found in rows)
    ]
    stages = (_STAGES[place] for place in known)
    table = plain_table("batch", "p50 ms", "p90 ms", "p99 ms", *stages, "samples/s")
    for point, found in rows:
        times = (shown(ms, ".3f") for ms in (*found.latencies, *(found.stages[place] for place in known)))
        rate = found.rate.samples_per_s if found.rate is not None else None
        table.add_row(marked(point, on_host=on_host), *times, shown(rate, ",.0f"))
    return table


def _caption(report: BenchReport) -> str:
    counts = sorted({len(point.latency.samples.start_ms) for point in report.points})
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    clock = "by the host's clock" if is_on_host(report) else "of device events"
    return (
        f"latency: host clock, one query in flight, {span} queries per batch; "
        f"compute, H2D, D2H: medians {clock}, in separate queries; "
        "rates: measured with the contract's queue"
    )


def _known(point: BenchPoint) -> str:
    """How well its median and its p99 are known."""
    latency = point.latency.samples.latency_ms
    supported = [p for p in (50.0, 99.0) if percentile(latency, p) is not None]
    told = [f"p{p:g} {percentile_interval(latency, p).text}" for p in supported]
    return f"batch {point.batch}: {'; '.join(told) or 'no latency counts'}"


def _layer_table(batch: int, layers: LayerPass) -> RenderableType:
    medians = sorted(((summarise(layer.ms).median, layer.name) for layer in layers.layers), reverse=True)
    total = sum(ms for ms, _ in medians)
    title = (
        f"batch {batch}: slowest of {len(medians)} layers (medians of {layers.runs} profiled runs, "
        f"{total:.3f} ms in all)"
    )
    table = plain_table("ms", "share")
    table.add_column("layer", overflow="ellipsis", no_wrap=True)
    for ms, name in medians[:_TOP_LAYERS]:
        table.add_row(f"{ms:.4f}", f"{ms / total:.1%}" if total else "–", Text(name))
    return titled(title, table)


def _memory_table(traced: Sequence[tuple[int, MemoryPass]]) -> RenderableType:
    table = plain_table("batch", "peak MiB", "calls", "inputs and outputs MiB", "seen by the driver MiB")
    for batch, memory in traced:
        sizes = (memory.peak_bytes, memory.buffers_bytes, memory.driver_used_bytes)
        peak, buffers, seen = (shown(size and size / _MIB, ".1f") for size in sizes)
        table.add_row(str(batch), peak, f"{len(memory.events):,}", buffers, seen)
    return titled("device memory: TensorRT's allocations, buffers, and growth seen by the driver", table)
