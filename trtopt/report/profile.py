"""A profile: where the time goes, in which types, how far from the floor, what is fused and what it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from trtopt.records import (
    Coverage,
    DevicePeaks,
    EngineDifference,
    EngineProfile,
    EngineTensor,
    Fallback,
    Fusion,
    LayerChange,
    LayerGroup,
    LiveAllocation,
    MemoryTimeline,
    PhaseMemory,
    PrecisionReceipt,
    ProfiledLayer,
    ProfileReport,
    Unfused,
)
from trtopt.report.kernels import hides_its_time, kernel_blocks, kernel_changes
from trtopt.report.names import kind_text, names_text, nodes_text, type_text
from trtopt.report.notes import Note, Severity, plain
from trtopt.report.view import UNKNOWN, Block, Column, Face, Lines, Table, View, table

_MIB = 2**20
_TOP_LAYERS = 10
_TOP_PATTERNS = 6
_TOP_CHANGES = 10


def profile_view(report: ProfileReport) -> View:
    """Each engine in turn, differences, and the device's peaks."""
    blocks = [block for engine in report.engines for block in _engine(engine)]
    for difference in report.differences:
        changes, *kernels = difference_tables(difference)
        counts = Counter(change.change for change in difference.changes)
        listed = ", ".join(f"{count} {name}" for name, count in counts.most_common())
        blocks += [changes, Lines([f"changes: {listed}"]), *kernels, Lines([""])]
    return View("", [*blocks, Lines(peak_lines(report.peaks))], profile_notes(report))


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


def _engine(engine: EngineProfile) -> list[Block]:
    memory, build = engine.memory, engine.build_memory
    return [
        *([] if engine.kernels is None else kernel_blocks(engine.batch, engine.kernels)),
        layers_table(engine),
        Lines([*total_lines(engine), *roofline_lines(engine)]),
        Lines(_time_lines(engine), is_detail=True),
        *fusion_blocks(engine),
        *receipt_blocks(engine.receipt),
        *(memory_blocks(memory) if memory is not None else ()),
        *([Lines(build_memory_lines(build))] if build is not None else ()),
        Lines([""]),
    ]


# ── layers ──────────────────────────────────────────────────────────────────────────────────────────────


def layers_table(engine: EngineProfile) -> Table:
    """The layers of a timed engine, or the nodes of one that was not run with their minimum cost."""
    sum_ms, is_timed = engine.sum_ms, engine.sum_ms > 0
    timed: Face = "" if is_timed else "page"
    untimed: Face = "page" if is_timed else ""
    spreads: list[Column[ProfiledLayer]] = [
        Column("spread", _spread, "", face="terminal", width=6),
        Column("floor", _floor_text, "", face="terminal", width=10),
    ]
    columns: list[Column[ProfiledLayer]] = [
        Column("layer", nodes_text, face="page"),
        Column("ms", lambda layer: layer.ms, ".4f", timed, width=7),  # a phone shows the first three
        Column(
            "share",
            lambda one: one.ms / sum_ms if is_timed and one.ms is not None else None,
            ".1%",
            timed,
            width=6,
        ),
        *(spreads if is_timed else ()),
        Column("type", type_text, "", width=8),
        Column("kind", kind_text, fit="cut", width=8),
        Column("p10 ms", lambda layer: layer.low_ms, ".4f", face="page"),
        Column("p90 ms", lambda layer: layer.high_ms, ".4f", face="page"),
        Column("floor ms", _floor, ".4f", face="page"),
        Column("× floor", _above_floor, ".1f", face="page"),
        Column("bound by", lambda layer: layer.cost.bound if layer.cost is not None else "", face="page"),
        Column("MFLOP", lambda one: one.cost.flops / 1e6 if one.cost else None, ",.2f", untimed, width=8),
        Column("MB", lambda one: one.cost.bytes_moved / 1e6 if one.cost else None, ",.3f", untimed, width=6),
        Column("ONNX nodes", nodes_text, face="terminal", fit="cut"),
    ]
    caption = "floor: by memory or compute, from the device's peaks; " if is_timed else ""
    return table(
        f"batch {engine.batch}: {count_text(engine)}",
        columns,
        engine.layers,
        caption=f"{caption}(type): requested",
        top=_TOP_LAYERS,
        is_tight=True,
        sorted_by="ms" if is_timed else "MFLOP",
        details=[_details(layer) for layer in engine.layers],
    )


def count_text(engine: EngineProfile) -> str:
    """How many layers, and their time; for an engine that was not run, the nodes of its graph."""
    count = f"{len(engine.layers):,}"
    if not engine.sum_ms:
        return f"{count} nodes of the ONNX file, not timed"
    return f"{count} layers, {engine.sum_ms:.3f} ms in all (medians)"


def _details(layer: ProfiledLayer) -> list[tuple[str, str]]:
    """What the page unfolds below a layer, without names that its first cell already shows."""
    facts = [
        ("layer", layer.name),
        ("ONNX nodes", " + ".join(layer.onnx_nodes)),
        ("operators", ", ".join(layer.onnx_ops)),
        ("mapped by", layer.mapped_by),
        ("tactic", layer.tactic),
        ("requested type", layer.requested_dtype),
        ("weights", f"{layer.weights_count:,}" if layer.weights_count else ""),
        ("inputs", "; ".join(map(_tensor, layer.inputs))),
        ("outputs", "; ".join(map(_tensor, layer.outputs))),
    ]
    return [(what, fact) for what, fact in facts if fact and fact != nodes_text(layer)]


def _tensor(tensor: EngineTensor) -> str:
    shape = "×".join(map(str, tensor.shape)) if tensor.shape is not None else ""
    return " ".join(part for part in (tensor.name, shape, tensor.format or tensor.dtype) if part)


def _spread(layer: ProfiledLayer) -> str | None:
    if not layer.ms or layer.low_ms is None or layer.high_ms is None:
        return None
    return f"±{(layer.high_ms - layer.low_ms) / 2 / layer.ms:.0%}"


def _floor(layer: ProfiledLayer) -> float | None:
    return layer.cost.floor_ms if layer.cost is not None else None


def _floor_text(layer: ProfiledLayer) -> str | None:
    floor = _floor(layer)
    return f"{floor:.4f} {layer.cost.bound[:3]}" if layer.cost is not None and floor is not None else None


def _above_floor(layer: ProfiledLayer) -> float | None:
    floor = _floor(layer)
    return layer.ms / floor if layer.ms is not None and floor else None


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


# ── fusions and types ───────────────────────────────────────────────────────────────────────────────────


def fusion_blocks(engine: EngineProfile) -> Iterator[Block]:
    """The most frequent fusions, and why others did not happen; the page lists all."""
    yield Lines(_fusion_lines(engine), face="terminal")
    fused: list[Column[Fusion]] = [
        Column("ONNX operators", lambda one: " + ".join(one.ops)),
        Column("became", lambda one: one.kind or "one layer"),
        Column("times", lambda one: one.count, ","),
        Column("ms", lambda one: one.ms, ".4f"),
    ]
    missed: list[Column[Unfused]] = [
        Column("ms of the last", lambda one: one.ms, ".4f"),
        Column("fusion", lambda one: one.fusion),
        Column("reason", lambda one: one.reason),
        Column("nodes", lambda one: ", ".join(one.nodes)),
        Column("why", lambda one: one.detail),
    ]
    if engine.fusions:
        yield table("Fused into one layer", fused, engine.fusions, face="page")
    else:
        yield Lines(["No operators were fused."], face="page")
    if engine.unfused:
        yield table("Fusion candidates that were not fused", missed, engine.unfused, face="page")
    else:
        yield Lines(["Every candidate of a known fusion was fused."], face="page")


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


def receipt_blocks(receipt: PrecisionReceipt) -> Iterator[Block]:
    """Types that ran and requested types; the page lists all fallbacks."""
    lines = receipt_lines(receipt)
    yield Lines(lines, face="terminal")
    yield Lines(lines[:1] or ["Types are unknown."], face="page")
    columns: list[Column[Fallback]] = [
        Column("layer", lambda one: names_text(one.nodes) or one.layer),
        Column("requested", lambda one: one.requested),
        Column("ran in", lambda one: one.ran),
        Column("of the weights", lambda one: one.share_of_weights, ".1%"),
        Column("of the time", lambda one: one.share_of_time, ".1%"),
        Column("how", lambda one: "chosen by the builder's timing" if one.chosen else "fell back"),
    ]
    if receipt.fallbacks:
        yield table("Layers that ran in a wider type than requested", columns, receipt.fallbacks, face="page")


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


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────


def memory_blocks(memory: MemoryTimeline) -> list[Block]:
    """A summary, phases, what was live at the peak, and what was never freed."""
    return [
        Lines(memory_lines(memory)),
        phases_table(memory),
        _allocations("Live at the peak", memory.live_at_peak),
        *([_allocations("Never freed", memory.leaked)] if memory.leaked else []),
    ]


def phases_table(
    memory: MemoryTimeline, title: str = "By phase; a peak includes allocations of earlier phases"
) -> Table:
    """Of a run or of a build."""
    columns: list[Column[PhaseMemory]] = [
        Column("phase", lambda one: one.phase),
        Column("peak MiB", lambda one: one.peak_bytes / _MIB, ".2f"),
        Column("allocated MiB", lambda one: one.allocated_bytes / _MIB, ".2f"),
        Column("freed MiB", lambda one: one.freed_bytes / _MIB, ".2f"),
        Column("calls", lambda one: one.calls, ","),
    ]
    return table(title, columns, memory.phases, face="page")


def _allocations(title: str, allocations: Sequence[LiveAllocation]) -> Table:
    columns: list[Column[LiveAllocation]] = [
        Column("label", lambda one: one.label),
        Column("phase", lambda one: one.phase),
        Column("MiB", lambda one: one.size_bytes / _MIB, ".3f"),
        Column("since ms", lambda one: one.at_ms, ".2f"),
    ]
    return table(title, columns, allocations, face="page")


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


def _shares(shares: dict[str, float]) -> str:
    return ", ".join(f"{dtype} {share:.1%}" for dtype, share in shares.items())


# ── differences ─────────────────────────────────────────────────────────────────────────────────────────


def difference_tables(difference: EngineDifference) -> list[Table]:
    """What changed from A to B, layer by layer, then by kernels if known; the costliest change first."""
    gap = difference.b_ms - difference.a_ms
    columns: list[Column[LayerChange]] = [
        Column("A ms", lambda one: one.a_ms, ".4f"),
        Column("B ms", lambda one: one.b_ms, ".4f"),
        Column("cost ms", lambda one: one.cost_ms, "+.4f"),
        Column("change", lambda one: one.change),
        Column(
            "what", lambda one: ": ".join(filter(None, (one.detail, _place(one)))), face="terminal", fit="cut"
        ),
        Column("what", lambda one: one.detail, face="page"),
        Column("ONNX nodes", lambda one: names_text(one.nodes), face="page"),
        Column("layers in A", lambda one: ", ".join(one.a) or UNKNOWN, face="page"),
        Column("layers in B", lambda one: ", ".join(one.b) or UNKNOWN, face="page"),
    ]
    times = f"{difference.a_ms:.4f} → {difference.b_ms:.4f} ms ({gap:+.4f} ms)"
    title = f"A {difference.a} → B {difference.b}: {times}"
    return [table(title, columns, difference.changes, top=_TOP_CHANGES), *kernel_changes(difference)]


def _place(change: LayerChange) -> str:
    return names_text(change.nodes) or (change.a or change.b)[0]
