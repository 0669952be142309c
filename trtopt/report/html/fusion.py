"""Fusions and why others did not happen, the precision receipt, differences from an earlier profile."""

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
    Column("asked for"),
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


def fusion_section(found: Collected, command: str) -> Section:
    """A panel for each engine; one of nodes alone has no fusions to tell."""
    panels = [Panel(label, list(_fusions(engine))) for label, _, engine in engine_panels(found)]
    missing = Missing("Fusions are told from a profile, and there is none.", command)
    return Section("fusion", "Fusion", panels or [Panel("", [missing])])


def _fusions(engine: EngineProfile) -> Iterator[Block]:
    if not engine.sum_ms:
        yield Missing("The engine was not run: what fused is told on a machine that can run it.")
        return
    rows: list[list[Cell]] = [
        [" + ".join(one.ops), one.kind or "one layer", one.count, one.ms] for one in engine.fusions
    ]
    yield Table("What became one layer", _FUSED, rows) if rows else Lines(["No operators were fused."])
    rows = [[one.ms, one.fusion, one.reason, ", ".join(one.nodes), one.detail] for one in engine.unfused]
    if rows:
        yield Table("Candidates of known fusions that stayed apart", _UNFUSED, rows)
    else:
        yield Lines(["No candidate of a known fusion stayed apart."])


def precision_section(found: Collected, command: str) -> Section:
    """The precision receipt of each engine."""
    panels = [Panel(label, list(_receipt(engine.receipt))) for label, _, engine in engine_panels(found)]
    missing = Missing("The types that ran are told from a profile, and there is none.", command)
    return Section("precision", "Precision", panels or [Panel("", [missing])])


def _receipt(receipt: PrecisionReceipt) -> Iterator[Block]:
    sides = {
        "weights asked": receipt.weights_requested,
        "weights ran": receipt.weights_ran,
        "time ran": receipt.time_ran or {},
    }
    rows = [
        {"what": side, "type": dtype, "share": share}
        for side, parts in sides.items()
        for dtype, share in parts.items()
    ]
    if rows:
        yield shares("Types asked for and types that ran", rows, "what", "type", "share")
    yield Lines(receipt_lines(receipt)[:1] or ["Nothing is known of types."])
    if receipt.fallbacks:
        yield Table(
            "Layers that ran in a wider type than asked for",
            _FALLBACKS,
            [
                [
                    names_text(one.nodes) or one.layer,
                    one.requested,
                    one.ran,
                    one.share_of_weights,
                    one.share_of_time,
                    _how(one),
                ]
                for one in receipt.fallbacks
            ],
        )


def _how(fallback: Fallback) -> str:
    return "chosen by the builder's timing" if fallback.chosen else "fell back"


def difference_section(found: Collected, command: str) -> Section:
    """A panel for each difference that a profile holds."""
    panels = [
        Panel(f"{one.a} → {one.b}", [_difference(one)])
        for report in found.profiles.values()
        for one in report.differences
    ]
    missing = Missing("No profile was taken with --against an earlier one.", command)
    return Section("difference", "Difference", panels or [Panel("", [missing])])


def _difference(found: EngineDifference) -> Block:
    gap = found.b_ms - found.a_ms
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
        for one in found.changes
    ]
    title = f"A {found.a}: {found.a_ms:.4f} ms; B {found.b}: {found.b_ms:.4f} ms ({gap:+.4f} ms)"
    return Table(title, _CHANGES, rows)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "–"
