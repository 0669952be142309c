"""Fusions, missed fusions with reasons, the precision receipt, and differences from an earlier profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtopt.records import Collected, EngineDifference, EngineProfile, Fallback, PrecisionReceipt
from trtopt.report.html.blocks import Block, Cell, Column, Lines, Missing, Panel, Section, Table
from trtopt.report.html.charts import shares
from trtopt.report.html.layers import engine_panels
from trtopt.report.names import names_text
from trtopt.report.profile import receipt_lines

_FUSED = (Column("ONNX operators"), Column("became"), Column("times", "number"), Column("ms", "number", 4))
_UNFUSED = (
    Column("ms of the last", "number", 4),
    Column("fusion"),
    Column("reason"),
    Column("nodes"),
    Column("why"),
)
_FALLBACKS = (
    Column("layer"),
    Column("requested"),
    Column("ran in"),
    Column("of the weights", "share", 1),
    Column("of the time", "share", 1),
    Column("how"),
)
_CHANGES = (
    *(Column(name, "number", 4) for name in ("A ms", "B ms", "cost ms")),
    Column("change"),
    Column("what"),
    Column("ONNX nodes"),
    Column("layers in A"),
    Column("layers in B"),
)
_KERNELS = (
    *_CHANGES[:3],
    Column("ONNX nodes"),
    Column("kernels in A"),
    Column("kernels in B"),
    Column("blocks", "number"),
)


def fusion_section(collected: Collected, command: str) -> Section | Missing:
    """A panel for each engine; a profile of ONNX nodes has no fusions."""
    panels = [
        Panel(label, list(_fusions(engine))) for label, _, engine in engine_panels(collected) if engine.sum_ms
    ]
    return Section("fusion", "Fusion", panels) if panels else Missing("fusion", command)


def _fusions(engine: EngineProfile) -> Iterator[Block]:
    rows: list[list[Cell]] = [
        [" + ".join(one.ops), one.kind or "one layer", one.count, one.ms] for one in engine.fusions
    ]
    yield Table("Fused into one layer", _FUSED, rows) if rows else Lines(["No operators were fused."])
    rows = [[one.ms, one.fusion, one.reason, ", ".join(one.nodes), one.detail] for one in engine.unfused]
    if rows:
        yield Table("Fusion candidates that were not fused", _UNFUSED, rows)
    else:
        yield Lines(["Every candidate of a known fusion was fused."])


def precision_section(collected: Collected, command: str) -> Section | Missing:
    """The precision receipt of each engine."""
    panels = [Panel(label, list(_receipt(engine.receipt))) for label, _, engine in engine_panels(collected)]
    return Section("precision", "Precision receipt", panels) if panels else Missing("precision", command)


def _receipt(receipt: PrecisionReceipt) -> Iterator[Block]:
    sides = {
        "weights requested": receipt.weights_requested,
        "weights ran": receipt.weights_ran,
        "time ran": receipt.time_ran or {},
    }
    rows = [
        {"what": side, "type": dtype, "share": share}
        for side, parts in sides.items()
        for dtype, share in parts.items()
    ]
    if rows:
        yield shares("Requested types and types that ran", rows)
    yield Lines(receipt_lines(receipt)[:1] or ["Types are unknown."])
    if receipt.fallbacks:
        yield Table(
            "Layers that ran in a wider type than requested",
            _FALLBACKS,
            [
                [
                    names_text(one.nodes) or one.layer,
                    one.requested,
                    one.ran,
                    one.share_of_weights,
                    one.share_of_time,
                    _cause(one),
                ]
                for one in receipt.fallbacks
            ],
        )


def _cause(fallback: Fallback) -> str:
    return "chosen by the builder's timing" if fallback.chosen else "fell back"


def difference_section(collected: Collected, command: str) -> Section | Missing:
    """A panel for each difference in a profile."""
    panels = [
        Panel(f"{one.a} → {one.b}", difference_tables(one))
        for report in collected.profiles.values()
        for one in report.differences
    ]
    if not panels:
        return Missing("difference from an earlier profile", command)
    return Section("difference", "Difference from an earlier profile", panels)


def difference_tables(collected: EngineDifference) -> list[Table]:
    """What changed from A to B, layer by layer, then by kernels if known; the costliest change first."""
    gap = collected.b_ms - collected.a_ms
    rows: list[list[Cell]] = [
        [
            one.a_ms,
            one.b_ms,
            one.cost_ms,
            one.change,
            one.detail,
            names_text(one.nodes),
            _names(one.a),
            _names(one.b),
        ]
        for one in collected.changes
    ]
    title = (
        f"A {collected.a}: {collected.a_ms:.4f} ms; B {collected.b}: {collected.b_ms:.4f} ms ({gap:+.4f} ms)"
    )
    kernels: list[list[Cell]] = [
        [one.a_ms, one.b_ms, one.cost_ms, names_text(one.nodes), _names(one.a), _names(one.b), one.blocks]
        for one in collected.kernels
    ]
    replaced = [Table("Kernels that were replaced", _KERNELS, kernels)] if kernels else []
    return [Table(title, _CHANGES, rows), *replaced]


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "–"
