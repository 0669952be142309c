"""The certificate of an upgrade: one verdict; results, fusions, memory and build time."""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.measure.analysis.outcomes import Comparisons
from trtopt.records import EngineArtifact, OutputChange, Upgrade, UpgradedEngine, UpgradeVerdict
from trtopt.report.explanation import replaced_blocks
from trtopt.report.view import Block, Column, GateRow, Lines, columns_of, mib, table

_SENTENCES: dict[UpgradeVerdict, tuple[str, str]] = {
    "PASSED": ("B computes what A does, and is not slower", "green"),
    "WRONG": ("B computes something else than A, by more than rounding explains", "red"),
    "SLOWER": ("B is slower than A", "red"),
    "UNDECIDED": ("it is open whether B is as good as A", "yellow"),
}


def upgrade_blocks(outcome: Comparisons) -> Iterator[Block]:
    """The verdict before those on speed, then what it rests on."""
    found, verdict = outcome.upgrade, outcome.upgrade_verdict
    if found is None or verdict is None:
        return
    text, colour = _SENTENCES[verdict]
    yield Lines([f"upgrade: {text} ({verdict})"], colour)
    results: list[Column[OutputChange]] = [
        Column("batch", lambda one: one.batch, ""),
        Column("output", lambda one: one.output),
        *columns_of(
            ("values", "wrong", "open", "unknown"),
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
    for one in found.layers:
        yield from replaced_blocks(one, f"fusions lost and won, and layers replaced, batch {one.batch}")
    engines: list[Column[UpgradedEngine]] = [
        Column("batch", lambda row: row.batch, ""),
        Column("A build s", lambda row: row.a.build_seconds, ".1f"),
        Column("B build s", lambda row: row.b.build_seconds, ".1f"),
        Column("A file MiB", lambda row: mib(row.a.size_bytes), ".2f"),
        Column("B file MiB", lambda row: mib(row.b.size_bytes), ".2f"),
        Column("A memory MiB", lambda row: mib(row.a_memory_bytes), ".2f"),
        Column("B memory MiB", lambda row: mib(row.b_memory_bytes), ".2f"),
    ]
    sides = zip(*((row.a, row.b) for row in found.engines), strict=True)
    made = (", ".join(dict.fromkeys(map(_maker, side))) for side in sides)
    yield table(f"A built by {' and B by '.join(made)}", engines, found.engines)


def upgrade_gate(found: Upgrade) -> list[GateRow]:
    """What the results of each output say; nothing that was compared is no pass."""
    rows = []
    for one in found.outputs:
        name = f"trtopt results, {one.output}, batch {one.batch}"
        why = f"of {one.values} values {one.wrong} are wrong, {one.undecided} open, {one.skipped} unknown"
        rows.append(GateRow(name, one.verdict, f"{why} {one.worst}".strip()))
    return rows or [GateRow("trtopt results", "undecided", "no output could be compared")]


def _maker(one: EngineArtifact) -> str:
    driver = f" (driver {one.device.driver})" if one.device.driver else ""
    return f"{one.plan.backend} on {one.device.name}{driver}"
