"""The result of `trtopt tune` as text: one line, the ledger as a table, the predictor's score."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trtopt.measure.statistics.comparison import RunSpread, allowed_between_runs, spread_source
from trtopt.records import Ledger, LedgerEntry, PredictionScore, Tuned, TuneScore
from trtopt.report.tables import plain_table


def tuned_summary(tuned: Tuned) -> RenderableType:
    """The outcome, the ledger and why it ended."""
    return Group(
        Text(tuned_line(tuned)),
        ledger_table(tuned.ledger),
        Text(f"ended: {tuned.stopped}"),
        Text(separate_runs_line(tuned.ledger, tuned.folder)),
    )


def tuned_line(tuned: Tuned) -> str:
    """What was found, in a line."""
    ledger, terms = tuned.ledger, tuned.ledger.terms
    where = f"{terms.backend} on {terms.device.name}"
    at = f"batch {tuned.batch}" + (f", {tuned.streams} streams" if tuned.streams > 1 else "")
    cost = f"{ledger.baseline.cost:.4g} {ledger.baseline.unit}"
    tried = f"{len(ledger.entries)} candidates in {_duration(ledger.spent_s)}"
    if not tuned.changes:
        return f"no candidate is better than the baseline ({cost}) at {at} with {where}: {tried}"
    return (
        f"{tuned.folder}: {ledger.gain:.1%} less {terms.objective} than the baseline ({cost}) at {at} with "
        f"{where}, by {', '.join(tuned.changes)}: {tried}"
        if terms.objective != "throughput"
        else f"{tuned.folder}: {1 / (1 - ledger.gain):.2f} times the baseline's throughput "
        f"({1e3 / ledger.baseline.cost:,.0f} samples/s) at {at} with {where}, by "
        f"{', '.join(tuned.changes)}: {tried}"
    )


def separate_runs_line(ledger: Ledger, folder: str = "FOLDER") -> str:
    """What a gain, which was measured in turns, is worth in separate runs on this device."""
    spread = RunSpread.of(ledger.run_spread)
    return (
        f"gains were measured in turns; separate runs of one engine differ by up to "
        f"{allowed_between_runs(spread):.1%} ({spread_source(spread, folder)})"
    )


def ledger_table(ledger: Ledger) -> Table:
    """A row per candidate, in the order in which they were tried."""
    table = plain_table()
    for name in ("candidate", "expected", "80 % interval", "measured", "95 % interval", "s", "verdict"):
        left = name in ("candidate", "verdict")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    for entry in ledger.entries:
        table.add_row(*ledger_row(entry))
    return table


def ledger_row(entry: LedgerEntry) -> tuple[str, ...]:
    """A candidate's cells: gains are shares saved."""
    return (
        entry.candidate,
        _share(entry.expected_gain),
        _span(entry.predicted_low, entry.predicted_high),
        _share(entry.measured_gain),
        _span(entry.measured_low, entry.measured_high),
        f"{entry.cost_s:.0f}",
        entry.verdict,
    )


def score_summary(found: TuneScore) -> RenderableType:
    """The predictor's score over a machine's ledgers."""
    title = Text(score_line(found))
    if found.all is None:
        return title
    table = plain_table()
    columns = ("kind", "measured", "accepted", "mean absolute error", "rank correlation", "intervals held")
    for name in columns:
        table.add_column(name, justify="left" if name == "kind" else "right", no_wrap=True)
    for one in (*found.kinds, found.all):
        table.add_row(*_score_row(one))
    return Group(title, table)


def score_line(found: TuneScore) -> str:
    """The score in a line."""
    if found.all is None:
        return f"{found.device}: no candidate was measured in {found.ledgers} ledgers; run trtopt tune first"
    return (
        f"{found.device}: predicted gains were {found.all.mean_absolute_error:.2%} off on average, over "
        f"{found.all.count} candidates in {found.ledgers} ledgers"
    )


def _score_row(one: PredictionScore) -> tuple[str, ...]:
    rank = "–" if one.rank_correlation is None else f"{one.rank_correlation:+.2f}"
    return (
        one.kind,
        str(one.count),
        str(one.accepted),
        f"{one.mean_absolute_error:.2%}",
        rank,
        f"{one.intervals_held:.0%}",
    )


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1%}"


def _span(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{low:+.1%} to {high:+.1%}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
