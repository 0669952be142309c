"""The outcome of tuning, as text and as a section of the page."""

from __future__ import annotations

import msgspec
import pytest

from tests.support import examples
from tests.support.ledgers import entry, ledger, won
from trtopt.records import Collected, Ledger, MeasuredRunSpread, Tuned
from trtopt.records.tuning import Objective
from trtopt.report.html.blocks import Section, Table
from trtopt.report.html.folder import report_page
from trtopt.report.tuning import separate_runs_line, tuned_line

FAILED = entry(
    candidate="tiling=full", measured_gain=None, measured_low=None, measured_high=None, verdict="failed"
)


def tuned(found: Ledger, *changes: str) -> Tuned:
    return Tuned(
        folder="model.tuned", changes=changes, batch=8, streams=1, ledger=found, stopped="the budget ended"
    )


def test_gains_of_accepted_candidates_multiply() -> None:
    found = ledger(won(0.1), entry(measured_gain=0.5), FAILED, won(0.2))
    assert found.gain == pytest.approx(1 - 0.9 * 0.8)
    assert found.spent_s == 70 + 4 * 10


def test_the_line_says_what_was_saved_and_by_what() -> None:
    line = tuned_line(tuned(ledger(won(0.1), FAILED), "opt_level=5"))
    assert line.startswith("model.tuned: 10.0% less latency than the baseline (2 ms) at batch 8 with ")
    assert line.endswith(", by opt_level=5: 2 candidates in 90 s")


def test_what_separate_runs_differ_by_is_this_devices_or_named_as_anothers() -> None:
    assert separate_runs_line(ledger(), "out") == (
        "gains were measured in turns; separate runs of one engine differ by up to 2.8% (an H200's figure: "
        "this device's own is measured by `trtopt compare out --control 10`)"
    )
    kept = MeasuredRunSpread(created="", device=examples.GPU, deviation=0.01, runs=10)
    line = separate_runs_line(msgspec.structs.replace(ledger(), run_spread=kept))
    assert line.endswith("differ by up to 3.3% (measured on this device in 10 runs)")


def test_a_throughput_is_said_in_samples_per_second() -> None:
    found = ledger(won(0.2))
    objective: Objective = "throughput"
    terms = msgspec.structs.replace(found.terms, objective=objective)
    line = tuned_line(tuned(msgspec.structs.replace(found, terms=terms), "batch=32"))
    assert "1.25 times the baseline's throughput (500 samples/s)" in line


def test_nothing_better_is_no_gain() -> None:
    line = tuned_line(tuned(ledger(FAILED)))
    assert line.startswith("no candidate is better than the baseline (2 ms) at batch 8 with ")


def test_every_candidate_has_a_row_in_a_result_and_on_the_page() -> None:
    found = ledger(won(0.1), FAILED)
    result = tuned(found, "opt_level=5")
    assert repr(result) == "<Tuned: 2 candidates, 1 accepted: 10.0% less ms>"
    rows = result.rows()
    assert [(row["candidate"], row["measured_gain"]) for row in rows] == [
        ("opt_level=5", 0.1),
        ("tiling=full", None),
    ]
    collected = Collected(
        folder="model.tuned", name="model.tuned", manifest=examples.manifest(), ledger=found
    )
    (section,) = (
        section
        for question in report_page(collected).questions
        for section in question.sections
        if section.id == "tuning"
    )
    assert isinstance(section, Section)
    (table,) = (block for panel in section.panels for block in panel.blocks if isinstance(block, Table))
    assert [row[0] for row in table.rows] == ["opt_level=5", "tiling=full"]


def test_a_build_that_was_not_tuned_has_no_such_section() -> None:
    page = report_page(Collected(folder="m", name="m", manifest=examples.manifest()))
    assert not any(one.id == "tuning" for question in page.questions for one in question.sections)
