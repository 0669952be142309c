"""The certificate of an upgrade: one verdict; results, fusions, memory and build time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtopt.measure.analysis.outcomes import Comparisons
from trtopt.records import EngineArtifact, OutputChange, Replacement, Upgrade, UpgradeVerdict
from trtopt.report.explanation import replaced_text
from trtopt.report.view import Block, Column, GateRow, Lines, columns_of, mib, table

_SENTENCES: dict[UpgradeVerdict, tuple[str, str]] = {
    "PASSED": ("B computes what A does, and is not slower", "green"),
    "WRONG": ("B computes something else than A, by more than rounding explains", "red"),
    "SLOWER": ("B is slower than A", "red"),
    "UNDECIDED": ("it is open whether B is as good as A", "yellow"),
}


def upgrade_blocks(outcome: Comparisons, found: Upgrade) -> Iterator[Block]:
    """The verdict before those on speed, then what it rests on."""
    text, colour = _SENTENCES[outcome.upgrade_verdict]
    yield Lines([f"upgrade: {text} ({outcome.upgrade_verdict})"], colour)
    results: list[Column[OutputChange]] = [
        Column("batch", lambda one: one.batch, ""),
        Column("output", lambda one: one.output),
        *columns_of(
            ("values", "wrong", "open", "overflow"),
            lambda one: (one.values, one.wrong, one.undecided, one.skipped),
            ",",
        ),
        *columns_of(("A SQNR dB", "B SQNR dB"), lambda one: (one.a.sqnr_db, one.b.sqnr_db), ".1f"),
        Column(
            "where B differs most: float model, A, B", lambda one: one.worst if one.inputs else "", fit="fold"
        ),
        Column("shown by", lambda one: ", ".join(one.inputs), fit="fold"),
    ]
    yield table("results against the float model", results, found.outputs)
    layers: list[Column[tuple[int, Replacement]]] = [
        Column("batch", lambda row: row[0], ""),
        Column("fusion", lambda row: "lost" if len(row[1].a) < len(row[1].b) else "won"),
        Column("layers", lambda row: f"{len(row[1].a)} → {len(row[1].b)}"),
        Column("cost ms", lambda row: row[1].cost_ms, "+.4f"),
        Column("ONNX nodes: layers in A → in B", lambda row: replaced_text(row[1]), fit="fold"),
    ]
    changes = ((one.batch, change) for one in found.layers for change in one.replaced)
    fusions = [row for row in changes if row[1].a and row[1].b and len(row[1].a) != len(row[1].b)]
    if fusions:
        yield table("fusions lost and won", layers, sorted(fusions, key=lambda row: -row[1].cost_ms), top=5)
    engines: list[Column[Sequence[float | None]]] = [
        Column("batch", lambda row: row[0], ""),
        *columns_of(("A build s", "B build s"), lambda row: row[1:3], ".1f"),
        *columns_of(("A file MiB", "B file MiB", "A memory MiB", "B memory MiB"), lambda row: row[3:], ".2f"),
    ]
    made = (", ".join(dict.fromkeys(map(_maker, side))) for side in zip(*found.engines, strict=True))
    rows = [
        (batch, a.build_seconds, b.build_seconds, *map(mib, (a.size_bytes, b.size_bytes, *memory)))
        for batch, (a, b), memory in zip(found.batches, found.engines, found.memory_bytes, strict=True)
    ]
    yield table(f"A built by {' and B by '.join(made)}", engines, rows)


def upgrade_gate(found: Upgrade) -> list[GateRow]:
    """What the results of each output say; nothing that was compared is no pass."""
    rows = []
    for one in found.outputs:
        why = f"of {one.values} values {one.wrong} are wrong and {one.undecided} open {one.worst}".strip()
        rows.append(GateRow(f"trtopt results, {one.output}, batch {one.batch}", one.verdict, why))
    return rows or [GateRow("trtopt results", "undecided", "no output could be compared")]


def _maker(one: EngineArtifact) -> str:
    driver = f" (driver {one.device.driver})" if one.device.driver else ""
    return f"{one.plan.backend} on {one.device.name}{driver}"
