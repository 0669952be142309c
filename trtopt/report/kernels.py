"""Kernels as text tables: where the device's time goes, launch by launch and node by node."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from rich.console import RenderableType
from rich.text import Text

from trtopt.printable import visible
from trtopt.records import EngineDifference, EngineProfile, KernelGroup, KernelReport, KernelRow
from trtopt.report.names import names_text
from trtopt.report.tables import plain_table, shown, titled

_TOP = 10
_FIRST = 3
_MOSTLY = 0.5
_TILE = re.compile(r"^(.*?tilesize\d+x\d+x\d+)_.*")


def _text(line: str) -> Text:
    return Text(visible(line), no_wrap=True, overflow="ellipsis")


def hides_its_time(engine: EngineProfile) -> bool:
    """Whether the layer times say little: most lies in layers that hide their nodes."""
    return engine.coverage.time_opaque > _MOSTLY


def short_kernel(name: str) -> str:
    """A name up to its tile: what follows is the same in most, and pushes it out of a terminal."""
    return _TILE.sub(r"\1…", name.removeprefix("void "))


def kernel_parts(batch: int, kernels: KernelReport) -> list[RenderableType]:
    """What they add up to, then kernels by ONNX node and by name."""
    how = "replays of a CUDA graph" if kernels.graph else "plain runs"
    title = f"batch {batch}: {len(kernels.rows)} launches in each of {kernels.runs} {how}, medians"
    return [
        Text(title, "bold"),
        *(Text(visible(line)) for line in kernel_lines(kernels)),
        _groups("by ONNX node, the same nodes of repeated blocks together", "ONNX nodes", kernels.by_block),
        _groups("by kernel", "kernel", kernels.by_name, short_kernel),
    ]


def _groups(
    title: str, what: str, groups: Sequence[KernelGroup], label: Callable[[str], str] = str
) -> RenderableType:
    table = plain_table()
    table.padding = (0, 1, 0, 0)
    columns = {"ms": 6, "share": 6, "launches": 8, "of peak": 7}
    for name, width in columns.items():
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    table.add_column("confidence", no_wrap=True, min_width=10)
    table.add_column(what)  # of fixed width it would push the figures out
    for group in groups[:_TOP]:
        peak = shown(group.peak_share, ".0%")
        figures = (f"{group.ms:.4f}", f"{group.share:.1%}", str(group.launches), peak, group.confidence)
        table.add_row(*figures, _text(label(group.key)))
    if rest := groups[_TOP:]:
        ms, share = sum(one.ms for one in rest), sum(one.share for one in rest)
        launches = str(sum(one.launches for one in rest))
        table.add_row(f"{ms:.4f}", f"{share:.1%}", launches, "", "", f"{len(rest)} more")
    return titled(title, table)


def top_lines(kernels: KernelReport) -> list[str]:
    """What takes the most time, in a line or two."""
    does = ", ".join(f"{group.key} {group.share:.1%}" for group in kernels.by_family)
    first = ", ".join(f"{group.share:.0%} {group.key}" for group in kernels.by_block[:_FIRST])
    return [f"time by what kernels do: {does}", f"time by ONNX nodes: {first}"]


def kernel_lines(kernels: KernelReport) -> list[str]:
    """Where the time goes, the sums against the latency without the tracer, how well it is known, notes."""
    whole = kernels.busy_ms + kernels.gap_ms
    line = f"kernels {kernels.busy_ms:.3f} ms and gaps {kernels.gap_ms:.3f} ms are {whole:.3f} ms"
    if kernels.latency_ms is not None and kernels.remainder_ms is not None:
        share = f" ({kernels.remainder_ms / kernels.latency_ms:+.1%})" if kernels.latency_ms else ""
        line += (
            f"; latency without the tracer {kernels.latency_ms:.3f} ms, "
            f"remainder {kernels.remainder_ms:+.3f} ms{share}"
        )
    return [
        *top_lines(kernels)[:1],
        line,
        f"confidence, by time: layers {_known(kernels.rows, lambda row: row.layer_confidence)}; "
        f"ONNX nodes {_known(kernels.rows, lambda row: row.confidence)}",
        kernel_types_line(kernels),
        *(f"note: {note}" for note in kernels.notes),
    ]


def _known(rows: Iterable[KernelRow], confidence: Callable[[KernelRow], str]) -> str:
    return _shares(rows, confidence, ("certain", "likely", "unknown"))


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


def kernel_change_parts(difference: EngineDifference) -> list[RenderableType]:
    """The costliest replacements of kernels; nothing where either profile has none."""
    if not difference.kernels:
        return []
    table = plain_table()
    for name, width in {"A ms": 6, "B ms": 6, "cost ms": 7, "blocks": 6}.items():
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    table.add_column("ONNX nodes, kernels in A → in B")
    for change in difference.kernels[:_TOP]:
        figures = (f"{change.a_ms:.4f}", f"{change.b_ms:.4f}", f"{change.cost_ms:+.4f}", str(change.blocks))
        table.add_row(*figures, _text(names_text(change.nodes) or "no known node"))
        for sign, side in (("  ", change.a), ("→ ", change.b)):
            names = " + ".join(short_kernel(name) for name in dict.fromkeys(side))
            table.add_row("", "", "", "", _text(f"{sign}{names or 'nothing'}"))
    return [titled("kernels that were replaced", table)]
