"""Records of a history: results of one model over time, and where they changed."""

from __future__ import annotations

from typing import Literal

from trtopt.records.base import Record, Result, Shape
from trtopt.records.bench import Contract


class HistoryRun(Record, frozen=True, kw_only=True):
    """The figures of one result, in milliseconds; `file` is its name in the history's folder."""

    file: str
    created: str
    figures: dict[str, float]

    @property
    def main_ms(self) -> float:
        """The figure that tables and charts show: the first."""
        return next(iter(self.figures.values()))


class ChangedFact(Record, frozen=True, kw_only=True):
    """What was different from one run to the next."""

    what: str
    before: str
    after: str


class HistoryChange(Record, frozen=True, kw_only=True):
    """From the run in `file` on, `figure` is `ratio` times what it was, with an interval of 95 %.

    `causes` are what else changed there, the likeliest first; empty: nothing that results record.
    """

    file: str
    created: str
    figure: str
    ratio: float
    low: float
    high: float
    causes: tuple[ChangedFact, ...]


class HistorySeries(Record, frozen=True, kw_only=True):
    """All runs of the same on the same device under the same contract, the earliest first.

    `verdict` is on the newest run: SLOWER or FASTER where its level is another than the last that twenty runs
    were at, or than the first; UNTRUSTWORTHY where it has no figures: there may be no run at all.
    """

    device: str
    backend: str
    engine: str
    batch: int
    shapes: dict[str, Shape]
    mode: Literal["latency", "throughput"]
    contract: Contract
    runs: tuple[HistoryRun, ...]
    changes: tuple[HistoryChange, ...]
    verdict: Literal["SLOWER", "FASTER", "SAME", "UNDECIDED", "UNTRUSTWORTHY"]
    reason: str


class HistoryReport(Result, Record, frozen=True, kw_only=True):
    """What `trtopt history` finds in a folder; `notes` name what it left out."""

    schema: str = "trtopt.history/2"
    folder: str
    series: tuple[HistorySeries, ...]
    notes: tuple[str, ...] = ()
