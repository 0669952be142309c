"""Comparisons on a GPU, kept short."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import trtopt
from trtopt.measure.analysis.outcomes import Comparisons, Gaps
from trtopt.measure.statistics.comparison import Verdict


@pytest.mark.parametrize("batch", [1, 8])
def test_an_engine_against_itself_in_turns_has_no_winner(built: Path, batch: int) -> None:
    outcome = trtopt.compare(built, built, batch=[batch], duration=1.0).outcome
    assert isinstance(outcome, Comparisons)
    (row,) = outcome.rows
    assert row.comparison.verdict in (Verdict.SAME, Verdict.UNDECIDED)


def test_the_ledger_from_trtexec_10_to_11_adds_up_to_the_difference(built: Path) -> None:
    outcome = trtopt.compare(built, across_contracts="trtexec-10,trtexec-11", batch=[8], duration=1.0).outcome
    assert isinstance(outcome, Gaps)
    (gap,) = outcome.gaps
    for ledger in (gap.latency, gap.per_query):
        assert [entry.term for entry in ledger.entries] == ["graph", "transfers", "sync"]
        explained = math.fsum(entry.explained_us for entry in ledger.entries)
        assert math.isclose(explained + ledger.unexplained_us, ledger.difference_us, abs_tol=1e-9)
    transfers = gap.latency.entries[1]
    assert transfers.significant
    assert transfers.change_us < 0  # copies take time
