"""A profile: where the time goes, in which types, how far from the floor, what is fused and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from trtopt.records import (
    Coverage,
    DevicePeaks,
    EngineProfile,
    Fallback,
    Fusion,
    KernelGroup,
    KernelReport,
    KernelRow,
    MemoryTimeline,
    PrecisionReceipt,
    ProfiledLayer,
    ProfileReport,
    Unfused,
)
from trtopt.records.base import Row
from trtopt.report.layers import (
    count_text,
    hides_its_time,
    layers_table,
    nodes_text,
    roofline_charts,
    time_chart,
)
from trtopt.report.view import (
    Block,
    Column,
    Late,
    Lines,
    Note,
    Severity,
    Table,
    View,
    cells_of,
    each_text,
    mib_text,
    names_text,
    plain,
    short,
    shown,
    table,
    view_of,
)

_TOP_PATTERNS = 6
_TOP_KERNELS = 10
_CONFIDENCES = ("certain", "likely", "unknown")


@view_of.register
def profile_view(report: ProfileReport) -> View:
    """Each engine in turn, and the device's peaks."""
    outcome = "; ".join(f"batch {engine.batch}: {count_text(engine)}" for engine in report.engines)
    rows = (_figures(engine, layer) for engine in report.engines for layer in engine.layers)
    return View("", Late(lambda: _parts(report)), profile_notes(report), outcome, rows)


def _parts(report: ProfileReport) -> Iterator[Block]:
    for engine in report.engines:
        if engine.sum_ms:
            yield time_chart(engine)
        if engine.kernels is not None:
            yield from kernel_blocks(engine.batch, engine.kernels)
        yield layers_table(engine)
        yield Lines([*total_lines(engine), *roofline_lines(engine)])
        yield from roofline_charts(engine, report.peaks)
        yield Lines(_time_lines(engine), is_detail=True)
        yield from fusion_blocks(engine)
        yield from receipt_blocks(engine.receipt)
        if engine.memory is not None:
            yield Lines(memory_lines(engine.memory))
        yield Lines([""])
    yield Lines(peak_lines(report.peaks))


def _figures(engine: EngineProfile, layer: ProfiledLayer) -> Row:
    costs = {name: getattr(layer.cost, name, None) for name in ("flops", "bytes_moved", "floor_ms")}
    place: Row = {"batch": engine.batch, "engine": engine.engine.label}
    return place | cells_of(layer) | costs | {"onnx_nodes": ", ".join(layer.onnx_nodes)}


def profile_notes(report: ProfileReport) -> list[Note]:
    """What is unknown, engines whose layer times say little where kernels say more, then the notes."""
    notes = [Note(Severity.FINDING, f"not known: {text}") for text in report.missing]
    for engine in report.engines if report.environment.device.kind == "gpu" else ():
        if engine.kernels is None and hides_its_time(engine):
            text = f"{engine.coverage.time_opaque:.0%} of the time lies in layers that hide their nodes"
            notes.append(Note(Severity.HINT, text, engine.batch, "--kernels shows what runs inside"))
    return [*notes, *plain(report.notes)]


def peak_lines(peaks: DevicePeaks | None) -> list[str]:
    """The device's peak rates and their source."""
    if peaks is None:
        return []
    lines = [f"peak bandwidth {peaks.bandwidth.value / 1e9:,.0f} GB/s ({peaks.bandwidth.source})"]
    for dtype, peak in peaks.flops.items():
        lines.append(f"peak rate of {dtype} {shown(peak.value / 1e12, '.3g')} TFLOP/s ({peak.source})")
    return lines


# ── where the time goes ─────────────────────────────────────────────────────────────────────────────


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
    lines = [f"model: {short(difference.flops, ' ')}FLOP, {short(difference.bytes_moved, ' ')}B at least"]
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
    """The largest groups of layers by kind, type and module; how many of them the graph explains."""
    lines = []
    for title, groups in (("kind", engine.by_kind), ("type", engine.by_dtype), ("module", engine.by_module)):
        largest = [f"{group.key} {group.share:.0%} ({group.layers})" for group in groups[:_TOP_PATTERNS]]
        rest = len(groups) - _TOP_PATTERNS
        lines.append(f"by {title}: {', '.join(largest)}" + (f", and {rest} more" if rest > 0 else ""))
    return [*lines, *coverage_lines(engine.coverage)]


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


# ── kernels ─────────────────────────────────────────────────────────────────────────────────────────────


def kernel_blocks(batch: int, kernels: KernelReport) -> list[Block]:
    """What they add up to, then kernels by ONNX node and by name, and all launches on the page."""
    how = "replays of a CUDA graph" if kernels.graph else "plain runs"
    title = f"batch {batch}: {len(kernels.rows)} launches in each of {kernels.runs} {how}, medians"
    lines, groups = Lines(kernel_lines(kernels)), _kernel_groups(kernels)
    return [Lines([title], "bold"), lines, *groups, _kernels_table(kernels)]


def _kernel_groups(kernels: KernelReport) -> Iterator[Table]:
    for title, what, groups in (
        ("by ONNX node, the same nodes of repeated blocks together", "ONNX nodes", kernels.by_block),
        ("by kernel", "kernel", kernels.by_name),
    ):
        columns: list[Column[KernelGroup]] = [
            Column(what, lambda group: group.key, fit="cut"),
            Column("ms", lambda group: group.ms, ".4f", width=6),
            Column("share", lambda group: group.share, ".1%", width=6),
            Column("launches", lambda group: group.launches, "", width=8),
            Column("of peak", lambda group: group.peak_share, ".0%", width=7),
            Column("confidence", lambda group: group.confidence, width=10),
        ]
        others = groups[_TOP_KERNELS:]
        ms, share = sum(one.ms for one in others), sum(one.share for one in others)
        rest = (f"{len(others)} more", ms, share, sum(one.launches for one in others), "", "")
        yield table(title, columns, groups, top=_TOP_KERNELS, rest=rest)


def _kernels_table(kernels: KernelReport) -> Table:
    columns: list[Column[KernelRow]] = [
        Column("kernel", lambda row: row.name),
        Column("ms", lambda row: row.ms, ".4f"),  # a phone shows the first three
        Column("share", lambda row: row.own_ms / kernels.sum_ms if kernels.sum_ms else None, ".1%"),
        Column("ONNX nodes", lambda row: names_text(row.nodes)),
        Column("confidence", lambda row: row.confidence),
        Column("layer", lambda row: row.layer),
        Column("layer's confidence", lambda row: row.layer_confidence if row.layer else ""),
        Column("does", lambda row: row.family),
        Column("type", lambda row: row.dtype),
        Column("of peak", lambda row: row.peak_share, ".0%"),
        Column("gap before, ms", lambda row: row.gap_ms, ".4f"),
        Column("tensor cores", lambda row: {True: "yes", False: "no", None: ""}[row.tensor_cores]),
    ]
    details = [_details(row) for row in kernels.rows]
    return table("Kernels in the order they ran", columns, kernels.rows, face="page", details=details)


def _details(row: KernelRow) -> list[tuple[str, str]]:
    facts = [
        ("ONNX nodes", " + ".join(row.nodes) if names_text(row.nodes) != " + ".join(row.nodes) else ""),
        ("overlaps the one before", f"{row.overlap_ms:.4f} ms" if row.overlap_ms else ""),
        ("starts at", f"{row.start_ms:.4f} ms"),
        ("tile", "×".join(map(str, row.tile))),
        ("bytes", f"{row.nbytes:,}" if row.nbytes else ""),
        ("work", f"{row.flops / 1e6:,.2f} MFLOP" if row.flops else ""),
    ]
    return [(what, fact) for what, fact in facts if fact]


def kernel_lines(kernels: KernelReport) -> list[str]:
    """Where the time goes, the sums against the latency without the tracer, how well it is known, notes."""
    does = ", ".join(f"{group.key} {group.share:.1%}" for group in kernels.by_family)
    whole = kernels.busy_ms + kernels.gap_ms
    line = f"kernels {kernels.busy_ms:.3f} ms and gaps {kernels.gap_ms:.3f} ms are {whole:.3f} ms"
    if kernels.latency_ms is not None and kernels.remainder_ms is not None:
        share = f" ({kernels.remainder_ms / kernels.latency_ms:+.1%})" if kernels.latency_ms else ""
        line += (
            f"; latency without the tracer {kernels.latency_ms:.3f} ms, "
            f"remainder {kernels.remainder_ms:+.3f} ms{share}"
        )
    layers = _shares(kernels.rows, lambda row: row.layer_confidence, _CONFIDENCES)
    nodes = _shares(kernels.rows, lambda row: row.confidence, _CONFIDENCES)
    return [
        f"time by what kernels do: {does}",
        line,
        f"confidence, by time: layers {layers}; ONNX nodes {nodes}",
        kernel_types_line(kernels),
        *(f"note: {note}" for note in kernels.notes),
    ]


def kernel_types_line(kernels: KernelReport) -> str:
    """Types by kernel names; those of products tell the precision, which other names rarely hold."""
    parts = []
    for what, is_product in (("products", True), ("other kernels", False)):
        own = [row for row in kernels.rows if (row.family == "product") is is_product]
        if own:
            parts.append(f"{what} {_shares(own, lambda row: row.dtype or 'unknown')}")
    return f"types by kernel names: {'; '.join(parts)}"


def _shares(rows: Iterable[KernelRow], key: Callable[[KernelRow], str], order: Sequence[str] = ()) -> str:
    """Of the rows' time, in that order, else the largest first."""
    ms: dict[str, float] = dict.fromkeys(order, 0.0)
    for row in rows:
        ms[key(row)] = ms.get(key(row), 0.0) + row.own_ms
    total = sum(ms.values())
    keys = order or sorted(ms, key=lambda name: -ms[name])
    return ", ".join(f"{name} {ms[name] / total:.0%}" for name in keys if ms[name]) if total else "–"


# ── fusions and types ───────────────────────────────────────────────────────────────────────────────────


def fusion_blocks(engine: EngineProfile) -> Iterator[Block]:
    """What was fused, and why other candidates were not, those with one reason together."""
    fused: list[Column[Fusion]] = [
        Column("ONNX operators", lambda one: " + ".join(one.ops), fit="cut"),
        Column("became", lambda one: one.kind or "one layer", fit="cut"),
        Column("times", lambda one: one.count, ","),
        Column("ms", lambda one: one.ms, ".4f"),
    ]
    missed: list[Column[Sequence[Unfused]]] = [
        Column("fusion", lambda alike: alike[0].fusion),
        Column("reason", lambda alike: alike[0].reason),
        Column("times", len, ","),
        Column("ms of the last", lambda alike: sum(one.ms for one in alike), ".4f"),
        Column("why", lambda alike: f"{names_text(alike[0].nodes)}: {alike[0].detail}", fit="fold"),
    ]
    by_reason: dict[tuple[str, str], list[Unfused]] = {}
    for one in engine.unfused:
        by_reason.setdefault((one.fusion, one.reason), []).append(one)
    if engine.fusions:
        yield table("Fused into one layer", fused, engine.fusions, top=_TOP_PATTERNS)
    else:
        yield Lines(["No operators were fused."], face="page")
    if by_reason:
        yield table(
            "Fusion candidates that were not fused",
            missed,
            by_reason.values(),
            top=_TOP_PATTERNS,
            sorted_by="ms of the last",
            details=[[(", ".join(one.nodes), one.detail) for one in alike] for alike in by_reason.values()],
        )
    else:
        yield Lines(["Every candidate of a known fusion was fused."], face="page")


def receipt_blocks(receipt: PrecisionReceipt, of: str = "") -> Iterator[Block]:
    """Types that ran and requested types, then layers that ran wider; `of` names the engine."""
    parts = [f"time {each_text(receipt.time_ran, '.1%')}"] if receipt.time_ran is not None else []
    if receipt.weights_ran:
        requested = each_text(receipt.weights_requested, ".1%")
        parts.append(f"weights {each_text(receipt.weights_ran, '.1%')} (requested: {requested})")
    name = f"{of}: " if of else ""
    yield Lines([f"{name}precision: {'; '.join(parts)}"] if parts else [])
    columns: list[Column[Fallback]] = [
        Column("layer", lambda one: names_text(one.nodes) or one.layer, fit="cut"),
        Column("requested", lambda one: one.requested),
        Column("ran in", lambda one: one.ran),
        Column("of the weights", lambda one: one.share_of_weights, ".1%"),
        Column("of the time", lambda one: one.share_of_time, ".1%", is_optional=True),
        Column("how", lambda one: "chosen by timing" if one.chosen else "fell back"),
    ]
    if wider := sorted(receipt.fallbacks, key=lambda one: one.chosen):
        title = f"{name}{len(wider)} of {receipt.weighted_layers} layers ran in a wider type than requested"
        yield table(title, columns, wider, top=_TOP_PATTERNS)


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────


def memory_lines(memory: MemoryTimeline) -> list[str]:
    """The peak and its contents, each phase, the driver's view, and failures."""
    made, phases, held = (
        ", ".join(f"{what} {mib_text(size)}" for what, size in sizes.items())
        for sizes in (memory.at_peak_bytes, memory.peak_by_phase, memory.held_bytes)
    )
    lines = [
        f"memory: TensorRT's allocations peak at {mib_text(memory.peak_bytes)} in "
        f"{memory.peak_phase or 'none'} ({made or 'nothing live'}); "
        f"inputs and outputs {mib_text(memory.buffers_bytes)}",
        f"  peak by phase: {phases or 'no calls'}",
    ]
    if memory.driver_bytes is not None and memory.remainder_bytes is not None:
        share = f" ({memory.remainder_bytes / memory.driver_bytes:.1%})" if memory.driver_bytes else ""
        lines.append(
            f"  the driver reports {mib_text(memory.driver_bytes)}: {held or 'no allocations'}, and "
            f"{mib_text(memory.remainder_bytes)}{share} outside TensorRT's allocator"
        )
    if memory.context_bytes:
        more = ", ".join(mib_text(size) for size in memory.context_bytes)
        lines.append(f"  each further execution context: {more}")
    if memory.host_bytes is not None and memory.engine_file_bytes is not None:
        lines.append(
            f"  engine file {mib_text(memory.engine_file_bytes)}; "
            f"host memory grew by {mib_text(memory.host_bytes)}"
        )
    if memory.failed_bytes:
        first = mib_text(memory.failed_bytes[0])
        lines.append(f"  no memory for {len(memory.failed_bytes)} allocations, first {first}")
    if lost := memory.leaked_bytes:
        lines.append(f"  never freed: {len(lost)} allocations, {mib_text(sum(lost))}")
    if memory.failure is not None:
        lines.append(f"  ended early: {memory.failure}")
    return lines
