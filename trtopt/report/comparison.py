"""A comparison as a table for people, or as Markdown for a pull request."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trtopt.measure.comparison import ReasonCode
from trtopt.measure.results import ReportComparison, Row

_COLUMNS = ("batch", "A p50 ms", "B p50 ms", "B against A (95 %)", "verdict")


def comparison_summary(comparison: ReportComparison) -> RenderableType:
    """One row a batch size, then each verdict's reasons."""
    table = Table(
        title=_title(comparison), title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False
    )
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name != "verdict" else "left", no_wrap=True)
    for row in comparison.rows:
        table.add_row(*_cells(row))
    return Group(table, *(Text(line) for line in _remarks(comparison)))


def comparison_markdown(comparison: ReportComparison) -> str:
    """The same as Markdown."""
    lines = [
        _title(comparison),
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|" + "--:|" * (len(_COLUMNS) - 1) + ":--|",
    ]
    lines += [f"| {' | '.join(_cells(row))} |" for row in comparison.rows]
    return "\n".join([*lines, "", *(f"- {line}" for line in _remarks(comparison))]) + "\n"


def _title(comparison: ReportComparison) -> str:
    a, b = comparison.a.environment, comparison.b.environment
    threshold = comparison.rows[0].comparison.threshold
    return f"A: {a.backend}, B: {b.backend}, on {b.device.name}; threshold {threshold:.1%}"


def _cells(row: Row) -> tuple[str, ...]:
    ratio = row.comparison.ratio
    return (
        str(row.batch),
        f"{row.a_ms:.3f}",
        f"{row.b_ms:.3f}",
        ratio.change if ratio is not None else "–",
        row.comparison.verdict.value,
    )


def _remarks(comparison: ReportComparison) -> list[str]:
    """Each verdict's reasons, then what holds for all of them, once."""
    reasons = [(row, reason) for row in comparison.rows for reason in row.comparison.reasons]
    own = [
        f"batch {row.batch}: {row.comparison.verdict.value} because {reason.text}"
        for row, reason in reasons
        if reason.code is not ReasonCode.NOT_INTERLEAVED
    ]
    common = [reason.text for _, reason in reasons if reason.code is ReasonCode.NOT_INTERLEAVED]
    return [*own, *(f"note: {note}" for note in dict.fromkeys((*common, *comparison.notes)))]
