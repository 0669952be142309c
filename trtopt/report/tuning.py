"""The result of `trtopt tune` as text: one line, the ledger as a table, the predictor's score."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trtopt.measure.statistics.comparison import RunSpread, allowed_between_runs, spread_source
from trtopt.printable import counted
from trtopt.records import Ledger, LedgerEntry, PredictionScore, Tuned, TuneScore
from trtopt.report.tables import plain_table, shown

_BETTER = {"latency": "lower latency", "p99": "lower p99", "energy": "less energy"}
"""What a share saved is, by objective; a throughput is said in samples per second."""


def tuned_summary(tuned: Tuned) -> RenderableType:
    """What was gained and where it is, the ledger, and why it ended."""
    ledger = tuned.ledger
    tried = f"{counted(len(ledger.entries), 'candidate')} in {_duration(ledger.spent_s)}"
    return Group(
        Text(gain_line(ledger)),
        Text(deploy_line(tuned)),
        *([ledger_table(ledger)] if ledger.entries else []),
        Text(f"ended after {tried}: {tuned.stopped}"),
        Text(separate_runs_line(ledger, tuned.folder)),
    )


def gain_line(ledger: Ledger) -> str:
    """What was gained, against the baseline, and by which candidates."""
    objective, before, unit = ledger.terms.objective, ledger.baseline.cost, ledger.baseline.unit
    if not ledger.accepted:
        return f"no candidate is better than the baseline: {before:.4g} {unit}"
    after = before * (1 - ledger.gain)
    figures = (
        f"{1e3 / after:,.0f} instead of {1e3 / before:,.0f} samples/s"
        if objective == "throughput"
        else f"{after:.4g} instead of {before:.4g} {unit}"
    )
    return f"{saved(ledger)}{_sureness(ledger)}: {figures}, by {', '.join(ledger.accepted)}"


def saved(ledger: Ledger) -> str:
    """What the result gains."""
    if ledger.terms.objective == "throughput":
        return f"{1 / (1 - ledger.gain):.2f} times the baseline's throughput"
    return f"{ledger.gain:.1%} {_BETTER[ledger.terms.objective]}"


def _sureness(ledger: Ledger) -> str:
    """The gain's interval, and whether it is significant; or which races it is of, if not of the result's."""
    if ledger.raced is None:
        count = len(ledger.accepted)
        return " (by the candidate's race)" if count == 1 else f" (the product of {count} races)"
    low, high = ledger.raced.low, ledger.raced.high
    if ledger.terms.objective == "throughput":
        span = f"{1 / (1 - low):.2f} to {1 / (1 - high):.2f}"
    else:
        span = f"{low:.1%} to {high:.1%}"
    return f" (95 %: {span}{'' if ledger.raced.is_faster else ', no significant gain'})"


def deploy_line(tuned: Tuned) -> str:
    """Where the best engine is, and how it was run."""
    terms = tuned.ledger.terms
    streams = f", {tuned.streams} streams" if tuned.streams > 1 else ""
    return (
        f"deploy {tuned.folder}: batch {tuned.batch}{streams}, {terms.backend} on {terms.device.name}"
        f"{'' if tuned.changes else ' (the baseline)'}"
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
    columns = ("candidate", "expected", "80 % interval", "measured", "95 % interval", "s", "verdict")
    table = plain_table(*columns, left=("candidate", "verdict"))
    for entry in ledger.entries:
        table.add_row(*ledger_row(entry))
    return table


def ledger_row(entry: LedgerEntry) -> tuple[str, ...]:
    """A candidate's cells: gains are shares saved, and what costs twice as much or more is said in times."""
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
    columns = ("kind", "measured", "accepted", "mean absolute error", "rank correlation", "intervals held")
    table = plain_table(*columns, left=("kind",))
    for one in (*found.kinds, found.all):
        table.add_row(*_score_row(one))
    return Group(title, table)


def score_line(found: TuneScore) -> str:
    """The score in a line."""
    if found.all is None:
        return f"{found.device}: no candidate was measured here yet; run trtopt tune first"
    return (
        f"{found.device}: predicted gains were {found.all.mean_absolute_error:.2%} off on average, over "
        f"{found.all.count} candidates in {found.ledgers} ledgers"
    )


def _score_row(one: PredictionScore) -> tuple[str, ...]:
    return (
        one.kind,
        str(one.count),
        str(one.accepted),
        f"{one.mean_absolute_error:.2%}",
        shown(one.rank_correlation, "+.2f"),
        f"{one.intervals_held:.0%}",
    )


def _share(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:+.1%}" if value >= -1 else f"{_times(value)} cost"


def _times(gain: float) -> str:
    """What a gain leaves of the cost, in times."""
    return f"{1 - gain:,.0f}×" if gain < -99 else f"{1 - gain:.3g}×"


def _span(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "–"
    if low < -1:  # both ends in one unit
        return f"{_times(low)} to {_times(high)} cost"
    return f"{_share(low)} to {_share(high)}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
