"""A comparison as text tables, or as Markdown for a pull request."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.console import Group, RenderableType
from rich.text import Text

from trtopt.measure.analysis.gap_ledger import Entry, Ledger
from trtopt.measure.analysis.outcomes import (
    Comparisons,
    ControlRow,
    Gap,
    Gaps,
    Layers,
    Lottery,
    LotteryBatch,
    Outcome,
    Row,
)
from trtopt.measure.statistics.comparison import Comparison, Ratio, ReasonCode, Verdict
from trtopt.printable import visible
from trtopt.records import Trust
from trtopt.report.notes import Note, Severity, at_batches, grouped, plain
from trtopt.report.tables import UNKNOWN, plain_table, shown, titled

_TOP_LAYERS = 20


_COLOURS = {Verdict.SLOWER: "red", Verdict.FASTER: "green", Verdict.SAME: "", Verdict.UNDECIDED: "yellow"}
"""The verdicts in the order in which they are summarised."""

_REASONS = {
    ReasonCode.NEAR_THRESHOLD: "the difference is real, but may be above or below the threshold",
    ReasonCode.TOO_NOISY: "too noisy for the threshold; take more samples",
    ReasonCode.DISTURBED: "the latencies of A or B are not steady or not trustworthy",
}
"""Reasons that differ in their figures only, or that name a side."""


@dataclass(frozen=True)
class _Section:
    """One table; the summary above it with its colours, and the remarks below."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...] = ()
    summary: tuple[tuple[str, str], ...] = ()

    def is_text(self, column: int) -> bool:
        """Whether a column is aligned to the left."""
        return self.columns[column] in ("verdict", "layer", "term", "build")


def comparison_summary(outcome: Outcome, *, verbose: bool = False) -> RenderableType:
    """Verdicts in a sentence each, then tables with their remarks; `verbose` adds every reason."""
    parts: list[RenderableType] = []
    for section in _sections(outcome):
        table = plain_table()
        for index, name in enumerate(section.columns):
            is_text = section.is_text(index)
            table.add_column(
                name,
                justify="left" if is_text else "right",
                no_wrap=True,
                overflow="ellipsis" if name == "layer" else "fold",
            )
        for row in section.rows:
            table.add_row(*map(_cell, row))
        parts += [Text(text, style) for text, style in section.summary]
        parts += [titled(section.title, table), *map(Text, section.remarks)]
    if verbose and isinstance(outcome, Comparisons):
        parts += map(Text, _all_reasons(outcome))
    return Group(*parts)


def _cell(text: str) -> Text:
    return Text(text, _COLOURS[Verdict(text)] if text in set(Verdict) else "")


def comparison_markdown(outcome: Outcome) -> str:
    """The same as Markdown, with all notes."""
    notes = "".join(f"- {visible(line)}\n" for line in grouped(comparison_notes(outcome)))
    return "\n".join(_markdown(section) for section in _sections(outcome)) + notes


def comparison_notes(outcome: Outcome) -> list[Note]:
    """Why verdicts are open, what was found at which batch size, and the notes of the comparison."""
    if not isinstance(outcome, Comparisons):
        return plain(outcome.notes)
    notes, common = [], []
    if outcome.not_shown:
        text = f"not shown to be within {outcome.limit:.1%} of A"
        notes += [Note(Severity.FAILURE, text, row.batch, outcome.again) for row in outcome.not_shown]
    for row in outcome.rows:
        comparison = row.comparison
        for reason in comparison.reasons:
            if reason.code in (ReasonCode.NOT_INTERLEAVED, ReasonCode.CONTROL_NOISE):
                common.append(reason.text)
            elif reason.code is ReasonCode.DISTURBED:
                notes.append(Note(Severity.DOUBT, f"unsteady (~): {_REASONS[reason.code]}", row.batch))
            elif comparison.verdict is Verdict.UNDECIDED:
                notes.append(_open(row, _REASONS.get(reason.code, reason.text)))
        notes += [Note(Severity.FINDING, remark, row.batch) for remark in row.remarks]
    findings = [Note(Severity.FINDING, text) for text in dict.fromkeys(outcome.notes)]
    return [*dict.fromkeys(notes), *findings, *plain(dict.fromkeys(common))]


def _open(row: Row, why: str) -> Note:
    return Note(Severity.FINDING, Verdict.UNDECIDED.value, row.batch, why)


def _markdown(section: _Section) -> str:
    marks = (":--" if section.is_text(index) else "--:" for index in range(len(section.columns)))
    lines = [
        visible(section.title),
        "",
        _line(section.columns),
        f"|{'|'.join(marks)}|",
        *map(_line, section.rows),
    ]
    return "\n".join([*lines, "", *(f"- {visible(remark)}" for remark in section.remarks)]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(visible(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def _sections(outcome: Outcome) -> Iterator[_Section]:
    if isinstance(outcome, Comparisons):
        yield from _comparison_sections(outcome)
    elif isinstance(outcome, Lottery):
        for batch in outcome.batches:
            yield _lottery_section(outcome, batch)
    elif isinstance(outcome, Gaps):
        for gap in outcome.gaps:
            yield _gap_section(outcome, gap)
    else:
        yield _layer_section(outcome)


# ── B against A ─────────────────────────────────────────────────────────────────────────────────────────


def _comparison_sections(outcome: Comparisons) -> Iterator[_Section]:
    where = f"on {outcome.device}; {outcome.figure}, threshold {outcome.threshold:.1%}"
    if outcome.controls:
        yield _Section(
            title=f"control: {outcome.a} against itself, {where}",
            columns=("batch", "A p50 ms", *(verdict.value for verdict in Verdict), "apart at 95 %"),
            rows=tuple(map(_control_cells, outcome.controls)),
        )
    if outcome.rows:
        yield _Section(
            title=f"A: {outcome.a}, B: {outcome.b}, {where}",
            columns=("batch", "A p50 ms", "B p50 ms", "B against A (95 %)", "verdict"),
            rows=tuple(map(_cells, outcome.rows)),
            summary=tuple(_verdicts(outcome)),
        )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        _batch(row.batch) + (Trust.UNSTEADY.mark if _is_disturbed(row) else ""),
        f"{row.a_ms:.3f}",
        f"{row.b_ms:.3f}",
        _change(row.comparison),
        row.comparison.verdict.value,
    )


def _is_disturbed(row: Row) -> bool:
    return any(reason.code is ReasonCode.DISTURBED for reason in row.comparison.reasons)


def _batch(batch: int | None) -> str:
    return "?" if batch is None else str(batch)


def _change(comparison: Comparison) -> str:
    return comparison.ratio.change if comparison.ratio is not None else UNKNOWN


def _control_cells(row: ControlRow) -> tuple[str, ...]:
    counts = (str(row.control.count(verdict)) for verdict in Verdict)
    apart = shown(None if (noise := row.control.noise) is None else noise.relative, ".1%")
    return (str(row.batch), f"{row.a_ms:.3f}", *counts, apart)


def _verdicts(outcome: Comparisons) -> Iterator[tuple[str, str]]:
    """A sentence and its colour for each verdict, with the batch sizes that have it."""
    for verdict, colour in _COLOURS.items():
        rows = [row for row in outcome.rows if row.comparison.verdict is verdict]
        if rows:
            where = at_batches([row.batch for row in rows])
            yield f"{_sentence(verdict, rows, outcome.threshold)}{where} ({verdict.value})", colour


def _sentence(verdict: Verdict, rows: Sequence[Row], threshold: float) -> str:
    if verdict is Verdict.SAME:
        return f"B is as fast as A within {threshold:.1%}"
    if verdict is Verdict.UNDECIDED:
        return "it is open whether B is faster than A"
    speeds = [speed(row.comparison.ratio) for row in rows if row.comparison.ratio is not None]
    if len(speeds) == 1:
        ((value, half_width),) = speeds
        return f"B is {value:.2f} ± {half_width:.2f} times as fast as A"
    slowest, fastest = min(speeds), max(speeds)
    return f"B is {slowest[0]:.2f} to {fastest[0]:.2f} times as fast as A"


def speed(ratio: Ratio) -> tuple[float, float]:
    """How many times as fast B is as A, and half the width of its 95 % interval."""
    return 1 / ratio.value, (1 / ratio.low - 1 / ratio.high) / 2


def _all_reasons(outcome: Comparisons) -> Iterator[str]:
    for row in outcome.rows:
        verdict = row.comparison.verdict.value
        for reason in row.comparison.reasons:
            yield f"batch {_batch(row.batch)}: {verdict} because {reason.text}"


# ── builds of one recipe ────────────────────────────────────────────────────────────────────────────────


def _lottery_section(outcome: Lottery, batch: LotteryBatch) -> _Section:
    slowest, fastest = max(b.ms for b in batch.builds), min(b.ms for b in batch.builds)
    return _Section(
        title=f"{outcome.subject}, batch {batch.batch}: builds of one recipe on {outcome.device}; "
        f"latency, threshold {outcome.threshold:.1%}",
        columns=("build", "p50 ms", "engine MiB", "against the first (95 %)", "verdict"),
        rows=tuple(
            (
                built.name,
                f"{built.ms:.3f}",
                f"{built.size_bytes / 2**20:.2f}",
                _change(built.comparison) if built.comparison is not None else "–",
                built.comparison.verdict.value if built.comparison is not None else "–",
            )
            for built in batch.builds
        ),
        remarks=(
            f"batch {batch.batch}: {batch.spread.text}",
            f"batch {batch.batch}: the slowest build takes {slowest / fastest - 1:.1%} longer than the "
            f"fastest; {len(batch.builds)} builds gave {batch.distinct} different engine file"
            + ("s" if batch.distinct > 1 else ""),
        ),
    )


# ── the gap ledger ──────────────────────────────────────────────────────────────────────────────────────


def _gap_section(outcome: Gaps, gap: Gap) -> _Section:
    remarks = [
        "latency: the median with one query in flight; time per query: from one query's end to the next "
        "one's, with the contract's queue and streams. A term's share counts where it is beyond its "
        "uncertainty (95 %); the rest is unexplained. Terms interact: a share belongs to its place in this "
        "order.",
    ]
    loops = (("latency", gap.loop_latency), ("time per query", gap.loop_per_query))
    remarks += [
        f"{loop.term}: under {outcome.end} a bare loop without events and bookkeeping changes {figure} by "
        f"{_microseconds(loop)} µs"
        for figure, loop in loops
        if loop is not None
    ]
    return _Section(
        title=f"{outcome.subject}, batch {gap.batch}: from {outcome.start} to {outcome.end} on "
        f"{outcome.device}; microseconds",
        columns=("term", "latency", "explains", "time per query", "explains"),
        rows=tuple(
            (first[0], *first[1:], *second[1:])
            for first, second in zip_longest(ledger_rows(gap.latency), ledger_rows(gap.per_query))
        ),
        remarks=tuple(remarks),
    )


def ledger_rows(ledger: Ledger) -> list[tuple[str, str, str]]:
    """(term, change in µs with its uncertainty, the part explained in µs), from start to end."""
    rows = [("from", f"{ledger.start_ms * 1e3:.1f}", "")]
    for entry in ledger.entries:
        if entry.change_us == entry.uncertainty_us == 0:
            rows.append((entry.term, "no part in it", ""))
        else:
            explained = f"{entry.explained_us:+.1f}" if entry.significant else "within noise"
            rows.append((entry.term, _microseconds(entry), explained))
    rows.append(("unexplained", "", f"{ledger.unexplained_us:+.1f}"))
    rows.append(("to", f"{ledger.end_ms * 1e3:.1f}", f"{ledger.difference_us:+.1f}"))
    return rows


def _microseconds(entry: Entry) -> str:
    uncertainty = "unknown" if math.isinf(entry.uncertainty_us) else f"{entry.uncertainty_us:.1f}"
    return f"{entry.change_us:+.1f} ± {uncertainty}"


# ── layers ──────────────────────────────────────────────────────────────────────────────────────────────


def _layer_section(outcome: Layers) -> _Section:
    a_ms = sum(row.a_ms or 0.0 for row in outcome.rows)
    b_ms = sum(row.b_ms or 0.0 for row in outcome.rows)
    rows = [
        (row.name, shown(row.a_ms, ".4f"), shown(row.b_ms, ".4f"), f"{row.change_ms:+.4f}")
        for row in outcome.rows[:_TOP_LAYERS]
    ]
    hidden = len(outcome.rows) - len(rows)
    rows.append(("all layers", f"{a_ms:.4f}", f"{b_ms:.4f}", f"{b_ms - a_ms:+.4f}"))
    more = (f"the other {hidden} layers change less",) if hidden else ()
    return _Section(
        title=f"A: {outcome.a}, B: {outcome.b}; layers, means in milliseconds",
        columns=("layer", "A ms", "B ms", "change"),
        rows=tuple(rows),
        remarks=more,
    )
