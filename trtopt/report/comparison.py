"""A comparison: B against A, an upgrade's certificate, or the ledger of the gap between two contracts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from trtopt.measure.analysis.gap_ledger import Gap, Ledger
from trtopt.measure.analysis.outcomes import Compared, Comparisons, ControlRow, Gaps, Outcome, Row
from trtopt.measure.statistics.comparison import ReasonCode, Verdict
from trtopt.records import EngineArtifact, OutputChange, Trust, Upgrade, UpgradedEngine, UpgradeVerdict
from trtopt.report.charts import Channel, chart, listed, marks
from trtopt.report.explanation import replaced_blocks
from trtopt.report.view import (
    Block,
    Chart,
    Column,
    GateRow,
    Lines,
    Note,
    Severity,
    View,
    at_batches,
    cells_of,
    columns_of,
    mib,
    plain,
    table,
    view_of,
)

_COLOURS = {Verdict.SLOWER: "red", Verdict.FASTER: "green", Verdict.SAME: "", Verdict.UNDECIDED: "yellow"}
"""The verdicts in the order in which they are summarised."""

_STYLES = {verdict.value: colour for verdict, colour in _COLOURS.items()}

_REASONS = {
    ReasonCode.NEAR_THRESHOLD: "the difference is real, but may be above or below the threshold",
    ReasonCode.TOO_NOISY: "too noisy for the threshold; take more samples",
    ReasonCode.DISTURBED: "the latencies of A or B are not steady or not trustworthy",
}
"""Reasons that differ in their figures only, or that name a side."""


def comparison_view(outcome: Outcome) -> View:
    """Verdicts in a sentence each, then tables with their remarks, and every reason with `-v`."""
    if isinstance(outcome, Comparisons):
        reasons = [
            f"batch {row.batch}: {row.comparison.verdict.value} because {reason.text}"
            for row in outcome.rows
            for reason in row.comparison.reasons
        ]
        blocks = [*_upgrade_blocks(outcome), *_comparison_blocks(outcome), Lines(reasons, is_detail=True)]
    else:
        blocks = [block for gap in outcome.gaps for block in _gap_blocks(outcome, gap)]
    return View("", blocks, comparison_notes(outcome))


@view_of.register
def compared_view(compared: Compared) -> View:
    """The same, with the verdict at each batch size as rows of figures."""
    verdicts, outcome = compared.report.verdicts, compared.outcome
    rows = ({**cells_of(one), "reasons": "; ".join(one.reasons)} for one in verdicts)
    gate = [_gate_row(outcome, row) for row in outcome.rows] if isinstance(outcome, Comparisons) else []
    if compared.report.upgrade is not None:
        gate += _upgrade_gate(compared.report.upgrade)
    return replace(comparison_view(outcome), rows=rows, gate=gate)


def _gate_row(outcome: Comparisons, row: Row) -> GateRow:
    name, ratio, ms = f"trtopt latency, batch {row.batch}", row.comparison.ratio, [row.b_ms]
    if ratio is not None:
        ms += [row.b_ms * bound / ratio.value for bound in (ratio.low, ratio.high)]
    found, why = outcome.speed(row), "; ".join(reason.text for reason in row.comparison.reasons)
    if found != "slower":
        why = f"{'' if found == 'ok' else 'not '}shown to be within {outcome.limit:.1%} of A; {why}"
    return GateRow(name, found, why, ms)


def comparison_notes(outcome: Outcome) -> list[Note]:
    """Why verdicts are open, what was found at which batch size, and the notes of the comparison."""
    if not isinstance(outcome, Comparisons):
        return plain(outcome.notes)
    text, common = f"not shown to be within {outcome.limit:.1%} of A", []
    notes = [Note(Severity.FAILURE, text, row.batch, outcome.again) for row in outcome.not_shown]
    for row in outcome.rows:
        comparison = row.comparison
        for reason in comparison.reasons:
            if reason.code in (ReasonCode.NOT_INTERLEAVED, ReasonCode.CONTROL_NOISE):
                common.append(reason.text)
            elif reason.code is ReasonCode.DISTURBED:
                notes.append(Note(Severity.DOUBT, f"unsteady (~): {_REASONS[reason.code]}", row.batch))
            elif comparison.verdict is Verdict.UNDECIDED:
                why = _REASONS.get(reason.code, reason.text)
                notes.append(Note(Severity.FINDING, Verdict.UNDECIDED.value, row.batch, why))
        notes += [Note(Severity.FINDING, remark, row.batch) for remark in row.remarks]
    findings = [Note(Severity.FINDING, text) for text in dict.fromkeys(outcome.notes)]
    return [*dict.fromkeys(notes), *findings, *plain(dict.fromkeys(common))]


# ── B against A ─────────────────────────────────────────────────────────────────────────────────────────


def _comparison_blocks(outcome: Comparisons) -> Iterator[Block]:
    where = f"on {outcome.device}; latency, threshold {outcome.threshold:.1%}"
    controls: list[Column[ControlRow]] = [
        Column("batch", lambda row: row.batch, ""),
        Column("A p50 ms", lambda row: row.a_ms, ".3f"),
        *columns_of(
            [verdict.value for verdict in Verdict],
            lambda row: [row.control.count(verdict) for verdict in Verdict],
            "",
        ),
        Column("apart at 95 %", lambda row: row.control.noise.relative if row.control.noise else None, ".1%"),
    ]
    yield from _verdicts(outcome)
    if outcome.controls:
        yield table(f"control: {outcome.a} against itself, {where}", controls, outcome.controls)
    columns: list[Column[Row]] = [
        Column("batch", lambda row: f"{row.batch}{Trust.UNSTEADY.mark if row.is_disturbed else ''}", ""),
        Column("A p50 ms", lambda row: row.a_ms, ".3f"),
        Column("B p50 ms", lambda row: row.b_ms, ".3f"),
        Column(
            "B against A (95 %)",
            lambda row: row.comparison.ratio.change if row.comparison.ratio else None,
            "",
        ),
        Column("verdict", lambda row: row.comparison.verdict.value, colours=_STYLES),
    ]
    if outcome.rows:
        yield table(f"A: {outcome.a}, B: {outcome.b}, {where}", columns, outcome.rows)
        yield from _changes(outcome)


def _changes(outcome: Comparisons) -> Iterator[Chart]:
    """Each batch size's change with its interval, between the thresholds."""
    known = [(row, ratio) for row in outcome.rows if (ratio := row.comparison.ratio) is not None]
    rows = [
        {
            "batch": f"batch {row.batch}",
            "change": ratio.value - 1,
            "low": ratio.low - 1,
            "high": ratio.high - 1,
        }
        for row, ratio in known
    ]
    if not rows:
        return
    batch = Channel("batch", more={"title": None, "sort": None})
    change = Channel("change", "latency", "+.1%", "B's latency against A's (95 %)")
    low = Channel("low", "from", "+.1%", change.title, more={"axis": {"format": "+.1%"}})
    bounds = [{"bound": -outcome.threshold}, {"bound": outcome.threshold}]
    bound = Channel("bound", "threshold", "+.1%", change.title)
    yield chart(
        "B against A",
        rows,
        [batch, change, low, Channel("high", "to", "+.1%")],
        marks("rule", bounds, x=bound, strokeDash=[4, 3]),
        marks("rule", y=batch, x=low, x2={"field": "high"}, strokeWidth=3),
        marks("point", y=batch, x=change, filled=True, size=70),
        text=listed([f"batch {row.batch}: {ratio.change}" for row, ratio in known]),
        height=60 + 26 * len(rows),
    )


def _verdicts(outcome: Comparisons) -> Iterator[Lines]:
    """A sentence for each verdict, with the batch sizes that have it."""
    for verdict, colour in _COLOURS.items():
        rows = [row for row in outcome.rows if row.comparison.verdict is verdict]
        if rows:
            where = at_batches([row.batch for row in rows])
            yield Lines([f"{_sentence(verdict, rows, outcome.threshold)}{where} ({verdict.value})"], colour)


def _sentence(verdict: Verdict, rows: Sequence[Row], threshold: float) -> str:
    if verdict is Verdict.SAME:
        return f"B is as fast as A within {threshold:.1%}"
    if verdict is Verdict.UNDECIDED:
        return "it is open whether B is faster than A"
    ratios = [row.comparison.ratio for row in rows if row.comparison.ratio is not None]
    if len(ratios) == 1:
        half_width = (1 / ratios[0].low - 1 / ratios[0].high) / 2
        return f"B is {1 / ratios[0].value:.2f} ± {half_width:.2f} times as fast as A"
    speeds = [1 / ratio.value for ratio in ratios]
    return f"B is {min(speeds):.2f} to {max(speeds):.2f} times as fast as A"


# ── the certificate of an upgrade ───────────────────────────────────────────────────────────────────────


_SENTENCES: dict[UpgradeVerdict, tuple[str, str]] = {
    "PASSED": ("B computes what A does, and is not slower", "green"),
    "WRONG": ("B computes something else than A, by more than rounding explains", "red"),
    "SLOWER": ("B is slower than A", "red"),
    "UNDECIDED": ("it is open whether B is as good as A", "yellow"),
}


def _upgrade_blocks(outcome: Comparisons) -> Iterator[Block]:
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


def _upgrade_gate(found: Upgrade) -> list[GateRow]:
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


# ── the gap ledger ──────────────────────────────────────────────────────────────────────────────────────


def _gap_blocks(outcome: Gaps, gap: Gap) -> Iterator[Block]:
    names = ("latency", "explains", "time per query", "explains")
    columns: list[Column[Sequence[str]]] = [
        Column("term", lambda row: row[0]),
        *columns_of(names, lambda row: row[1:], ""),
    ]
    ledgers = zip(ledger_rows(gap.latency), ledger_rows(gap.per_query), strict=True)
    rows = [(*latency, *per_query[1:]) for latency, per_query in ledgers]
    yield table(
        f"{outcome.subject}, batch {gap.batch}: from {outcome.start} to {outcome.end} on "
        f"{outcome.device}; microseconds",
        columns,
        rows,
    )
    how = (
        "latency: the median with one query in flight; time per query: from one query's end to the next "
        "one's, with the contract's queue and streams. A term's share counts where it is beyond its "
        "uncertainty (95 %); the rest is unexplained. Terms interact: a share belongs to its place in "
        "this order."
    )
    yield Lines([how])


def ledger_rows(ledger: Ledger) -> list[tuple[str, str, str]]:
    """(term, change in µs with its uncertainty, the part explained in µs), from start to end."""
    rows = [("from", f"{ledger.start_ms * 1e3:.1f}", "")]
    for entry in ledger.entries:
        if entry.change_us == entry.uncertainty_us == 0:
            rows.append((entry.term, "no part in it", ""))
        else:
            uncertainty = "unknown" if math.isinf(entry.uncertainty_us) else f"{entry.uncertainty_us:.1f}"
            explained = f"{entry.explained_us:+.1f}" if entry.significant else "within noise"
            rows.append((entry.term, f"{entry.change_us:+.1f} ± {uncertainty}", explained))
    rows.append(("unexplained", "", f"{ledger.unexplained_us:+.1f}"))
    rows.append(("to", f"{ledger.end_ms * 1e3:.1f}", f"{ledger.difference_us:+.1f}"))
    return rows
