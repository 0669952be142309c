"""Kernels as text tables: where the device's time goes, launch by launch and node by node."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from trtopt.printable import visible
from trtopt.records import EngineDifference, KernelGroup, KernelReport
from trtopt.report.tables import plain_table, titled

_TOP = 10


def _text(line: str) -> Text:
    return Text(visible(line), no_wrap=True, overflow="ellipsis")


def kernel_parts(batch: int, kernels: KernelReport) -> list[RenderableType]:
    """Kernels by name, then by ONNX node, then what they add up to."""
    how = "replays of a CUDA graph" if kernels.graph else "plain runs"
    title = f"batch {batch}: {len(kernels.rows)} launches in each of {kernels.runs} {how}, medians"
    return [
        _groups(title, "kernel", kernels.by_name, with_confidence=False),
        _groups("by ONNX node, as far as known", "ONNX nodes", kernels.by_node, with_confidence=True),
        *(Text(visible(line)) for line in kernel_lines(kernels)),
    ]


def _groups(title: str, what: str, groups: Sequence[KernelGroup], *, with_confidence: bool) -> RenderableType:
    table = plain_table()
    for name in ("ms", "share", "launches"):
        table.add_column(name, justify="right", no_wrap=True)
    if with_confidence:
        table.add_column("confidence", no_wrap=True)
    table.add_column(what, no_wrap=True, overflow="ellipsis")
    for group in groups[:_TOP]:
        figures = [f"{group.ms:.4f}", f"{group.share:.1%}", str(group.launches)]
        confidence = [group.confidence] if with_confidence else []
        table.add_row(*figures, *confidence, _text(group.key))
    return titled(title, table)


def kernel_lines(kernels: KernelReport) -> list[str]:
    """The sums against the latency without the tracer, types by names, and notes."""
    whole = kernels.busy_ms + kernels.gap_ms
    line = f"kernels {kernels.busy_ms:.3f} ms and gaps {kernels.gap_ms:.3f} ms are {whole:.3f} ms"
    if kernels.latency_ms is not None and kernels.remainder_ms is not None:
        share = f" ({kernels.remainder_ms / kernels.latency_ms:+.1%})" if kernels.latency_ms else ""
        line += (
            f"; latency without the tracer {kernels.latency_ms:.3f} ms, "
            f"remainder {kernels.remainder_ms:+.3f} ms{share}"
        )
    lines = [line]
    if kernels.unknown_ms and kernels.sum_ms:
        lines.append(
            f"{kernels.unknown_ms:.3f} ms ({kernels.unknown_ms / kernels.sum_ms:.0%}) "
            "of kernels belong to no known node"
        )
    types = ", ".join(f"{group.key} {group.share:.0%}" for group in kernels.by_dtype)
    lines.append(f"types by kernel names: {types}")
    return [*lines, *(f"note: {note}" for note in kernels.notes)]


def kernel_change_parts(difference: EngineDifference) -> list[RenderableType]:
    """The costliest replacements of kernels; nothing where either profile has none."""
    if not difference.kernels:
        return []
    table = plain_table()
    for name in ("A ms", "B ms", "cost ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("A → B", no_wrap=True, overflow="ellipsis")
    for change in difference.kernels[:_TOP]:
        figures = (f"{change.a_ms:.4f}", f"{change.b_ms:.4f}", f"{change.cost_ms:+.4f}")
        sides = (" + ".join(dict.fromkeys(side)) or "nothing" for side in (change.a, change.b))
        table.add_row(*figures, _text(" → ".join(sides)))
    return [titled("kernels that were replaced", table)]
