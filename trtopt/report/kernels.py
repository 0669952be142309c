"""Kernels: where the device's time goes, launch by launch and node by node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from trtopt.records import (
    EngineProfile,
    KernelGroup,
    KernelReport,
    KernelRow,
)
from trtopt.report.view import Block, Column, Lines, Table, names_text, table

_TOP = 10
_MOSTLY = 0.5
_CONFIDENCES = ("certain", "likely", "unknown")


def hides_its_time(engine: EngineProfile) -> bool:
    """Whether the layer times say little: most lies in layers that hide their nodes."""
    return engine.coverage.time_opaque > _MOSTLY


def kernel_blocks(batch: int, kernels: KernelReport) -> list[Block]:
    """What they add up to, then kernels by ONNX node and by name, and all launches on the page."""
    how = "replays of a CUDA graph" if kernels.graph else "plain runs"
    title = f"batch {batch}: {len(kernels.rows)} launches in each of {kernels.runs} {how}, medians"
    lines, groups = Lines(kernel_lines(kernels)), _kernel_groups(kernels)
    return [Lines([title], "bold"), lines, *groups, _kernels_table(kernels)]


def _kernel_groups(kernels: KernelReport) -> Iterator[Table]:
    """Time by ONNX node and by kernel."""
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
        others = groups[_TOP:]
        ms, share = sum(one.ms for one in others), sum(one.share for one in others)
        rest = (f"{len(others)} more", ms, share, sum(one.launches for one in others), "", "")
        yield table(title, columns, groups, top=_TOP, rest=rest)


def _kernels_table(kernels: KernelReport) -> Table:
    """Every launch, in the order in which they ran."""
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
