"""A profile as text tables: where the time goes, in which types, how far from the floor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from trtopt.printable import visible
from trtopt.records import (
    Coverage,
    DevicePeaks,
    EngineDifference,
    EngineProfile,
    LayerGroup,
    MemoryTimeline,
    PrecisionReceipt,
    ProfiledLayer,
    ProfileReport,
    Unfused,
)
from trtopt.report.kernels import hides_its_time, kernel_change_parts, kernel_parts
from trtopt.report.names import kind_text, names_text, nodes_text, type_text
from trtopt.report.notes import Note, Severity, plain
from trtopt.report.tables import plain_table, shown, titled

_TOP_LAYERS = 10
_TOP_PATTERNS = 6
_TOP_CHANGES = 10
_TIMES = {"ms": 7, "share": 6, "spread": 6, "floor": 10, "type": 8}
_COSTS = {"MFLOP": 8, "MB": 6, "type": 8}
"""Columns and their minimum widths; the column of node names shrinks first."""
_REQUESTED_TYPE = "(type): requested"
_FLOORS = f"floor: by memory or compute, from the device's peaks; {_REQUESTED_TYPE}"


def _text(line: str) -> Text:
    """Text without markup, with control characters escaped."""
    return Text(visible(line))


def _shortened(line: str) -> Text:
    """On one line, with an ellipsis where the terminal is too narrow."""
    return Text(visible(line), no_wrap=True, overflow="ellipsis")


def profile_summary(report: ProfileReport, *, verbose: bool = False) -> RenderableType:
    """Each engine in turn, differences, and the device's peaks; `verbose` adds groups and mapping."""
    parts: list[RenderableType] = []
    for engine in report.engines:
        parts += _engine(engine, verbose=verbose)
    for difference in report.differences:
        parts += _difference(difference)
    parts += [_text(line) for line in peak_lines(report.peaks)]
    return Group(*parts)


def profile_notes(report: ProfileReport) -> list[Note]:
    """What is unknown, then the notes."""
    missing = [Note(Severity.FINDING, f"not known: {text}") for text in report.missing]
    return [*missing, *_hidden(report), *plain(report.notes)]


def _hidden(report: ProfileReport) -> Iterator[Note]:
    """Engines whose layer times say little, where kernels say more."""
    on_gpu = report.environment is not None and report.environment.device.kind == "gpu"
    for engine in report.engines:
        if on_gpu and engine.kernels is None and hides_its_time(engine):
            text = f"{engine.coverage.time_opaque:.0%} of the time lies in layers that hide their nodes"
            yield Note(Severity.HINT, text, engine.batch, "--kernels shows what runs inside")


def peak_lines(peaks: DevicePeaks | None) -> list[str]:
    """The device's peak rates and their source."""
    if peaks is None:
        return []
    lines = [f"peak bandwidth {peaks.bandwidth.value / 1e9:,.0f} GB/s ({peaks.bandwidth.source})"]
    for dtype, peak in peaks.flops.items():
        lines.append(f"peak rate of {dtype} {_figure(peak.value / 1e12)} TFLOP/s ({peak.source})")
    return lines


def _figure(value: float) -> str:
    """Three significant digits, or the whole number where that has more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _scaled(count: int, unit: str) -> str:
    """With an SI prefix, so that digits stand before the point: `8.2 GFLOP`, `295 kB`."""
    for prefix, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{_figure(count / size)} {prefix}{unit}"
    return f"{count} {unit}"


def _engine(engine: EngineProfile, *, verbose: bool) -> list[RenderableType]:
    lines = [
        *total_lines(engine),
        *roofline_lines(engine),
        *(_time_lines(engine) if verbose else ()),
        *_fusion_lines(engine),
        *receipt_lines(engine.receipt),
        *(memory_lines(engine.memory) if engine.memory is not None else ()),
        *(build_memory_lines(engine.build_memory) if engine.build_memory is not None else ()),
    ]
    kernels = [] if engine.kernels is None else kernel_parts(engine.batch, engine.kernels)
    return [*kernels, _layers(engine, verbose=verbose), *(_text(line) for line in lines), _text("")]


def _layers(engine: EngineProfile, *, verbose: bool) -> RenderableType:
    is_timed = engine.sum_ms > 0
    caption = _FLOORS if is_timed else _REQUESTED_TYPE
    table = plain_table()
    table.padding = (0, 1, 0, 0)
    for name, width in (_TIMES if is_timed else _COSTS).items():
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    table.add_column("kind", no_wrap=True, overflow="ellipsis", min_width=8, max_width=16)
    table.add_column("ONNX nodes")
    for layer in sorted(engine.layers, key=_weight, reverse=True)[:_TOP_LAYERS]:
        figures = _times(layer, engine.sum_ms) if is_timed else _costs(layer)
        table.add_row(*figures, type_text(layer), _text(kind_text(layer)), _shortened(nodes_text(layer)))
    return titled(f"batch {engine.batch}: {count_text(engine)}", table, caption if verbose else "")


def count_text(engine: EngineProfile) -> str:
    """How many layers, and their time; for an engine that was not run, the nodes of its graph."""
    count = f"{len(engine.layers):,}"
    if not engine.sum_ms:
        return f"{count} nodes of the ONNX file, not timed"
    return f"{count} layers, {engine.sum_ms:.3f} ms in all (medians)"


def _times(layer: ProfiledLayer, sum_ms: float) -> list[str]:
    cost = layer.cost
    floor = cost.floor_ms if cost is not None else None
    return [
        shown(layer.ms, ".4f"),
        f"{(layer.ms or 0.0) / sum_ms:.1%}",
        _spread(layer),
        f"{floor:.4f} {cost.bound[:3]}" if cost is not None and floor is not None else "–",
    ]


def _costs(layer: ProfiledLayer) -> list[str]:
    cost = layer.cost
    return ["–", "–"] if cost is None else [f"{cost.flops / 1e6:,.2f}", f"{cost.bytes_moved / 1e6:,.3f}"]


def _weight(layer: ProfiledLayer) -> tuple[float, int]:
    return (layer.ms or 0.0, layer.cost.flops if layer.cost is not None else 0)


def _spread(layer: ProfiledLayer) -> str:
    if not layer.ms or layer.low_ms is None or layer.high_ms is None:
        return "–"
    return f"±{(layer.high_ms - layer.low_ms) / 2 / layer.ms:.0%}"


def total_lines(engine: EngineProfile) -> list[str]:
    """The layers' sum against the latency measured without the profiler."""
    if not engine.sum_ms or not engine.latency_ms:
        return []
    gap = engine.sum_ms - engine.latency_ms
    how = "replays of a CUDA graph" if engine.layers_graph else "plain runs"
    return [
        f"layers timed in {how}; latency without the profiler {engine.latency_ms:.3f} ms: "
        f"the layers' sum differs by {gap:+.3f} ms ({gap / engine.latency_ms:+.1%})"
    ]


def roofline_lines(engine: EngineProfile) -> list[str]:
    """The model's minimum work, its floor, and the layers furthest above their floors."""
    difference = engine.roofline
    how = "at least" if engine.sum_ms else "node by node"  # fused nodes move less
    lines = [f"model: {_scaled(difference.flops, 'FLOP')}, {_scaled(difference.bytes_moved, 'B')} {how}"]
    if difference.floor_ms and difference.measured_ms:
        lines.append(
            f"floor {difference.floor_ms:.3f} ms, measured {difference.measured_ms:.3f} ms, "
            f"{difference.measured_ms / difference.floor_ms:.1f} times the floor; "
            f"floors are known for {difference.costed_share:.0%} of the time"
        )
    by_name = {layer.name: layer for layer in engine.layers}
    for rank, name in enumerate(engine.furthest, 1):
        layer = by_name[name]
        floor = layer.cost.floor_ms if layer.cost is not None and not layer.is_reformat else 0.0
        lines.append(
            f"  {rank}. {(layer.ms or 0.0) - (floor or 0.0):.4f} ms above its floor: {nodes_text(layer)}"
        )
    return lines


def _time_lines(engine: EngineProfile) -> list[str]:
    if not engine.sum_ms:
        return []
    return [
        _groups_line("by kind", engine.by_kind),
        _groups_line("by type", engine.by_dtype),
        _groups_line("by module", engine.by_module),
        *coverage_lines(engine.coverage),
    ]


def _groups_line(title: str, groups: Sequence[LayerGroup]) -> str:
    listed = ", ".join(f"{group.key} {group.share:.0%} ({group.layers})" for group in groups[:_TOP_PATTERNS])
    rest = len(groups) - _TOP_PATTERNS
    return f"{title}: {listed}" + (f", and {rest} more" if rest > 0 else "")


def coverage_lines(coverage: Coverage) -> list[str]:
    """How much of the engine was mapped to the ONNX graph, and the remainder."""
    lines = [
        f"mapped to ONNX: {coverage.time_mapped:.1%} of the time, {coverage.nodes_mapped:.1%} of the nodes"
    ]
    if coverage.time_opaque:
        lines[0] += f"; {coverage.time_opaque:.1%} of the time lies in layers that hide their nodes"
    for names, problem in (
        (coverage.unmatched_times, "timed, but not described"),
        (coverage.unmatched_layers, "described, but never timed"),
    ):
        if names:
            lines.append(f"{problem}: {len(names)} layers, such as {names[0]}")
    return lines


def _fusion_lines(engine: EngineProfile) -> list[str]:
    lines = [
        f"fused {one.count} times, {one.ms:.4f} ms: {' + '.join(one.ops)} → {one.kind or 'one layer'}"
        for one in engine.fusions[:_TOP_PATTERNS]
    ]
    by_reason: dict[tuple[str, str], list[Unfused]] = {}
    for each in engine.unfused:
        by_reason.setdefault((each.fusion, each.reason), []).append(each)
    ranked = sorted(by_reason.items(), key=lambda item: -sum(each.ms for each in item[1]))
    for (fusion, reason), members in ranked[:_TOP_PATTERNS]:
        first = members[0]
        lines.append(
            f"not fused {len(members)} times ({reason}): {fusion}, such as "
            f"{first.nodes[0]} and {first.nodes[-1]}: {first.detail}"
        )
    return lines


def receipt_lines(receipt: PrecisionReceipt) -> list[str]:
    """The precision receipt: types that ran, requested types, and fallbacks."""
    parts = []
    if receipt.time_ran is not None:
        parts.append(f"time {_shares(receipt.time_ran)}")
    if receipt.weights_ran:
        parts.append(
            f"weights {_shares(receipt.weights_ran)} (requested: {_shares(receipt.weights_requested)})"
        )
    lines = [f"precision: {'; '.join(parts)}"] if parts else []
    binding = [one for one in receipt.fallbacks if not one.chosen]
    for one in binding[:_TOP_PATTERNS]:
        lines.append(
            f"  fell back: {names_text(one.nodes) or one.layer} ran in {one.ran}, requested {one.requested} "
            f"({one.share_of_weights:.1%} of the weights)"
        )
    rest = len(binding) - _TOP_PATTERNS
    lines += [f"  and {rest} layers more"] if rest > 0 else []
    if chosen := [one for one in receipt.fallbacks if one.chosen]:
        share = sum(one.share_of_weights for one in chosen)
        lines.append(
            "  the builder chose a wider type by its timing: "
            f"{len(chosen)} of {receipt.weighted_layers} layers with {share:.1%} of the "
            f"weights, first {names_text(chosen[0].nodes) or chosen[0].layer} in {chosen[0].ran}"
        )
    return lines


def memory_lines(memory: MemoryTimeline) -> list[str]:
    """The peak and its contents, each phase, the driver's view, and failures."""
    by_label: dict[str, int] = {}
    for one in memory.live_at_peak:
        by_label[one.label] = by_label.get(one.label, 0) + one.size_bytes
    made = ", ".join(f"{label} {mib(size)}" for label, size in by_label.items())
    phases = ", ".join(f"{one.phase} {mib(one.peak_bytes)}" for one in memory.phases)
    lines = [
        f"memory: TensorRT's allocations peak at {mib(memory.peak_bytes)} in {memory.peak_phase or 'none'} "
        f"({made or 'nothing live'}); inputs and outputs {mib(memory.buffers_bytes)}",
        f"  peak by phase: {phases or 'no calls'}",
    ]
    if memory.driver_bytes is not None and memory.remainder_bytes is not None:
        share = f" ({memory.remainder_bytes / memory.driver_bytes:.1%})" if memory.driver_bytes else ""
        held = ", ".join(f"{label} {mib(size)}" for label, size in memory.held_bytes.items())
        lines.append(
            f"  the driver reports {mib(memory.driver_bytes)}: {held or 'no allocations'}, and "
            f"{mib(memory.remainder_bytes)}{share} outside TensorRT's allocator"
        )
    if memory.context_bytes:
        more = ", ".join(mib(size) for size in memory.context_bytes)
        lines.append(f"  each further execution context: {more}")
    if memory.host_bytes is not None and memory.engine_file_bytes is not None:
        lines.append(
            f"  engine file {mib(memory.engine_file_bytes)}; host memory grew by {mib(memory.host_bytes)}"
        )
    if memory.failed_bytes:
        first = mib(memory.failed_bytes[0])
        lines.append(f"  no memory for {len(memory.failed_bytes)} allocations, first {first}")
    lines += _leaked_lines(memory)
    if memory.failure is not None:
        lines.append(f"  ended early: {memory.failure}")
    return lines


def build_memory_lines(memory: MemoryTimeline) -> list[str]:
    """The builder's peak by phase, and allocations that it never freed."""
    phases = ", ".join(f"{one.phase} {mib(one.peak_bytes)}" for one in memory.phases)
    return [
        f"memory of the build: peak {mib(memory.peak_bytes)} ({phases or 'no calls'})",
        *_leaked_lines(memory),
    ]


def _leaked_lines(memory: MemoryTimeline) -> list[str]:
    lost = sum(one.size_bytes for one in memory.leaked)
    return [f"  never freed: {len(memory.leaked)} allocations, {mib(lost)}"] if memory.leaked else []


def mib(size: int) -> str:
    """A size in MiB."""
    return f"{size / 2**20:.2f} MiB"


def receipts_summary(receipts: Mapping[str, PrecisionReceipt]) -> RenderableType:
    """The receipts of a folder's engines, each with its engine's name."""
    return _by_engine({name: receipt_lines(receipt) for name, receipt in receipts.items()})


def build_memories_summary(memories: Mapping[str, MemoryTimeline]) -> RenderableType:
    """Device memory used by the build, per engine."""
    return _by_engine({name: build_memory_lines(memory) for name, memory in memories.items()})


def _by_engine(found: Mapping[str, Sequence[str]]) -> RenderableType:
    lines = (line for name, own in found.items() if own for line in (f"{name}: {own[0]}", *own[1:]))
    return Group(*map(_text, lines))


def _shares(shares: dict[str, float]) -> str:
    return ", ".join(f"{dtype} {share:.1%}" for dtype, share in shares.items())


def _difference(difference: EngineDifference) -> list[RenderableType]:
    gap = difference.b_ms - difference.a_ms
    times = f"{difference.a_ms:.3f} → {difference.b_ms:.3f} ms ({gap:+.3f} ms)"
    title = f"A {difference.a} → B {difference.b}: {times}"
    table = plain_table("A ms", "B ms", "cost ms")
    table.add_column("change", no_wrap=True)
    table.add_column("what")
    for change in difference.changes[:_TOP_CHANGES]:
        name = names_text(change.nodes) or (change.a or change.b)[0]
        text = f"{change.detail}: {name}" if change.detail else name
        figures = (f"{change.a_ms:.4f}", f"{change.b_ms:.4f}", f"{change.cost_ms:+.4f}")
        table.add_row(*figures, change.change, _shortened(text))
    counts = Counter(change.change for change in difference.changes)
    listed = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    return [_text(title), table, _text(f"changes: {listed}"), *kernel_change_parts(difference), _text("")]
