"""What a comparison comes to, whatever was compared: for reports to show."""

from __future__ import annotations

from dataclasses import dataclass

from trtopt.measure.analysis.gap_ledger import Gap
from trtopt.measure.statistics.comparison import Comparison, Verdict
from trtopt.measure.statistics.control import Control
from trtopt.records import CompareReport
from trtopt.records.base import Result


@dataclass(frozen=True)
class Row:
    """One batch size: both medians in milliseconds, what became of B against A, and further findings."""

    batch: int
    a_ms: float
    b_ms: float
    comparison: Comparison
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class ControlRow:
    """One batch size of A against itself: its median in milliseconds, and each pair's verdict."""

    batch: int
    a_ms: float
    control: Control


@dataclass(frozen=True)
class Comparisons:
    """B against A for all batch sizes that both have, and A against itself if requested.

    `a`, `b` and `device` name what was compared where; `notes` name what was forced. `limit` is the slowdown
    that must be ruled out; `again` is the command that measures more sharply where it is not.
    """

    a: str
    b: str
    device: str
    threshold: float
    limit: float
    rows: tuple[Row, ...]
    controls: tuple[ControlRow, ...] = ()
    notes: tuple[str, ...] = ()
    again: str = ""

    @property
    def has_regression(self) -> bool:
        """Whether B is slower at any batch size."""
        return any(row.comparison.verdict is Verdict.SLOWER for row in self.rows)

    @property
    def not_shown(self) -> tuple[Row, ...]:
        """The batch sizes at which B is not SLOWER, but not shown to be within the limit either."""
        return tuple(
            row
            for row in self.rows
            if row.comparison.verdict is not Verdict.SLOWER and not row.comparison.rules_out(self.limit)
        )


@dataclass(frozen=True)
class Gaps:
    """Where the difference between two contracts comes from."""

    start: str
    end: str
    subject: str
    device: str
    gaps: tuple[Gap, ...]
    notes: tuple[str, ...] = ()

    has_regression, not_shown = False, ()


Outcome = Comparisons | Gaps


@dataclass(frozen=True, repr=False)
class Compared(Result):
    """A comparison: the outcome to show, and the record that `--json` writes."""

    outcome: Outcome
    report: CompareReport

    def record(self) -> CompareReport:
        """What `--json` writes."""
        return self.report

    @property
    def failure(self) -> str | None:
        """What broke a run in turns off in the middle; the outcome rests on what had finished by then."""
        broken = (run for run in self.report.runs if run.failure is not None)
        return next((f"batch {run.batch}: {run.failure}" for run in broken), None)
