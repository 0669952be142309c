"""Verdicts in sentences, and why they are open in one line per reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from trtopt.measure.analysis.outcomes import Comparisons, Row
from trtopt.measure.statistics.comparison import Comparison, Ratio, Reason, ReasonCode, Verdict
from trtopt.report.comparison import comparison_notes, comparison_view
from trtopt.report.view import Severity, grouped


def row(batch: int, verdict: Verdict, speed: float, *reasons: Reason) -> Row:
    ratio = Ratio(1 / speed, 1 / (speed + 0.02), 1 / (speed - 0.02), 0.0, 0.0)
    return Row(batch, 1.0, 1 / speed, Comparison(verdict, reasons, ratio))


def outcome(*rows: Row) -> Comparisons:
    return Comparisons("x", "y", "A GPU", 0.01, 0.05, rows, notes=("the graphs differ",), again="do C")


def shown(of: Comparisons, *, verbose: bool = False) -> list[str]:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(comparison_view(of).terminal(verbose=verbose))
    return capture.get().splitlines()


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([row(8, Verdict.FASTER, 1.31)], "B is 1.31 ± 0.02 times as fast as A at batch 8 (FASTER)"),
        ([row(8, Verdict.SLOWER, 0.8)], "B is 0.80 ± 0.02 times as fast as A at batch 8 (SLOWER)"),
        (
            [row(1, Verdict.FASTER, 1.5), row(8, Verdict.FASTER, 1.31)],
            "B is 1.31 to 1.50 times as fast as A at batch 1, 8 (FASTER)",
        ),
        ([row(1, Verdict.SAME, 1.0)], "B is as fast as A within 1.0% at batch 1 (SAME)"),
    ],
)
def test_a_verdict_is_a_sentence(rows: list[Row], sentence: str) -> None:
    assert shown(outcome(*rows))[0] == sentence


def test_a_disturbed_row_is_marked_and_says_so_whatever_its_verdict() -> None:
    disturbed = Reason(ReasonCode.DISTURBED, "A is marked as not to be trusted: too hot")
    of = outcome(row(1, Verdict.SLOWER, 0.5, disturbed), row(8, Verdict.SLOWER, 0.5))
    assert [line.split()[0] for line in shown(of)[-2:]] == ["1~", "8"]
    (doubt,) = [note for note in comparison_notes(of) if note.severity is Severity.DOUBT]
    assert doubt.batch == 1


def test_a_regression_comes_first() -> None:
    lines = shown(outcome(row(1, Verdict.FASTER, 1.5), row(8, Verdict.SLOWER, 0.5)))
    assert [line.rpartition(" ")[2] for line in lines[:2]] == ["(SLOWER)", "(FASTER)"]


def test_open_verdicts_with_one_reason_are_one_line_and_verbose_has_each() -> None:
    reasons = [
        Reason(ReasonCode.TOO_NOISY, f"latency changes by {batch}%: too noisy") for batch in (1, 8, 32)
    ]
    rows = [
        row(batch, Verdict.UNDECIDED, 1.0, reason, Reason(ReasonCode.NOT_INTERLEAVED, "separate runs"))
        for batch, reason in zip((1, 8, 32), reasons, strict=True)
    ]
    of = replace(outcome(*rows), limit=0.01)
    assert not outcome(*rows).not_shown
    expected = [
        "not shown to be within 1.0% of A at batch 1, 8, 32: do C",
        "UNDECIDED at batch 1, 8, 32: too noisy for the threshold; take more samples",
        "the graphs differ",
        "separate runs",
    ]
    assert grouped(comparison_notes(of)) == expected
    assert comparison_view(of).markdown().splitlines()[-4:] == [f"- {line}" for line in expected]
    assert not any("latency changes" in line for line in shown(of))
    assert sum("latency changes" in line for line in shown(of, verbose=True)) == 3
