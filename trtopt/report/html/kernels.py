"""Kernels: when each ran, which take the time, and which ONNX nodes they serve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtopt.records import Collected, KernelGroup, KernelReport, KernelRow
from trtopt.report.html.blocks import (
    Block,
    Cell,
    Column,
    Lines,
    Missing,
    Panel,
    Section,
    Table,
    known_columns,
)
from trtopt.report.html.layers import engine_panels
from trtopt.report.html.timeline import kernel_timeline
from trtopt.report.kernels import kernel_lines
from trtopt.report.names import names_text

_COLUMNS = (
    Column("kernel"),
    Column("ms", "number", 4),  # a phone shows the first three
    Column("share", "share", 1),
    Column("ONNX nodes"),
    Column("confidence"),
    Column("layer"),
    Column("layer's confidence"),
    Column("does"),
    Column("type"),
    Column("of peak", "share", 0),
    Column("gap before, ms", "number", 4),
    Column("grid"),
    Column("block"),
    Column("registers", "number"),
    Column("shared bytes", "number"),
    Column("tensor cores"),
    Column("stream", "number"),
)
_GROUPS = (
    Column("ms", "number", 4),
    Column("share", "share", 1),
    Column("launches", "number"),
    Column("of peak", "share", 0),
    Column("confidence"),
)


def kernels_section(collected: Collected, command: str) -> Section | Missing:
    """A panel for each engine whose kernels were recorded."""
    panels = [
        Panel(label, list(_blocks(engine.kernels)))
        for label, _, engine in engine_panels(collected)
        if engine.kernels is not None
    ]
    return Section("kernels", "Kernels", panels) if panels else Missing("kernels", command)


def _blocks(kernels: KernelReport) -> Iterator[Block]:
    yield Lines(kernel_lines(kernels))
    yield kernel_timeline(kernels)
    yield _groups(
        "Time by ONNX node, the same nodes of repeated blocks together", "ONNX nodes", kernels.by_block
    )
    yield _groups("Time by kernel", "kernel", kernels.by_name)
    columns, rows = known_columns(_COLUMNS, [_row(row, kernels.sum_ms) for row in kernels.rows])
    yield Table("Kernels in the order they ran", columns, rows, [_details(row) for row in kernels.rows])


def _groups(title: str, what: str, groups: Sequence[KernelGroup]) -> Table:
    columns, rows = known_columns(
        (Column(what), *_GROUPS),
        [
            [group.key, group.ms, group.share, group.launches, group.peak_share, group.confidence]
            for group in groups
        ],
    )
    return Table(title, columns, rows)


def _row(row: KernelRow, sum_ms: float) -> list[Cell]:
    is_kernel = row.kind == "kernel"
    return [
        row.name,
        row.ms,
        row.own_ms / sum_ms if sum_ms else None,
        names_text(row.nodes),
        row.confidence,
        row.layer,
        row.layer_confidence if row.layer else "",
        row.family,
        row.dtype,
        row.peak_share,
        row.gap_ms,
        "×".join(map(str, row.grid)) if is_kernel else "",
        "×".join(map(str, row.block)) if is_kernel else "",
        row.registers if is_kernel else None,
        row.shared_bytes if is_kernel else None,
        {True: "yes", False: "no", None: ""}[row.tensor_cores],
        row.stream,
    ]


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
