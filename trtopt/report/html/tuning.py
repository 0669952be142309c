"""The tuning of a build: every candidate with its predicted and its measured gain."""

from __future__ import annotations

from trtopt.records import Collected
from trtopt.report.html.blocks import Cell, Column, Lines, Panel, Section, Table, known_columns
from trtopt.report.tuning import gain_line, separate_runs_line

_CANDIDATES = (
    Column("candidate"),
    Column("kind"),
    Column("expected gain", "share", 1),
    Column("80 % from", "share", 1),
    Column("80 % to", "share", 1),
    Column("measured gain", "share", 1),
    Column("from", "share", 1),
    Column("to", "share", 1),
    Column("cosine", "number", 6),
    Column("s", "number", 0),
    Column("verdict"),
    Column("reason"),
    Column("predicted from"),
)


def tuning_section(collected: Collected) -> Section | None:
    """The ledger; None: the build was not tuned, so nothing is missing."""
    ledger = collected.ledger
    if ledger is None:
        return None
    rows: list[list[Cell]] = [
        [
            entry.candidate,
            entry.kind,
            entry.expected_gain,
            entry.predicted_low,
            entry.predicted_high,
            entry.measured_gain,
            entry.measured_low,
            entry.measured_high,
            entry.accuracy,
            entry.cost_s,
            entry.verdict,
            entry.reason,
            entry.evidence,
        ]
        for entry in ledger.entries
    ]
    objective = ledger.terms.objective
    title = f"Candidates in the order in which they were tried, for {objective}; gains are shares saved"
    return Section(
        "tuning",
        "Tuning",
        [
            Panel(
                "",
                [
                    Lines([gain_line(ledger), separate_runs_line(ledger)]),
                    Table(title, *known_columns(_CANDIDATES, rows)),
                ],
            )
        ],
    )
