"""The outcome of tuning, as text and as a section of the page."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from tests.support import examples
from tests.support.ledgers import entry, ledger, won
from trtopt.records import Collected, FinalRace, Ledger, MeasuredRunSpread, Tuned
from trtopt.records.tune import Objective
from trtopt.report.html.pages import report_page
from trtopt.report.tuning import deploy_line, gain_line, separate_runs_line, tuned_view
from trtopt.report.view import Table

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


def raced(found: Ledger, gain: float, *, is_faster: bool = True) -> Ledger:
    """With the race of the result."""
    final = FinalRace(changes=found.accepted, gain=gain, low=gain - 0.1, high=gain + 0.1, is_faster=is_faster)
    return msgspec.structs.replace(found, final=final)


def test_the_gain_is_that_of_the_results_own_race_as_long_as_it_is_the_result() -> None:
    two = ledger(won(0.1), won(0.2, candidate="aux_streams=0"))
    assert gain_line(two).startswith("28.0% lower latency (the product of 2 races): 1.44 instead of 2 ms")
    found = raced(two, 0.25)
    assert found.gain == 0.25
    assert gain_line(found).startswith("25.0% lower latency (95 %: 15.0% to 35.0%): 1.5 instead of 2 ms")
    lost = gain_line(raced(two, -0.01, is_faster=False))
    assert lost.startswith("-1.0% lower latency (95 %: -11.0% to 9.0%, no significant gain): 2.02 instead")
    further = msgspec.structs.replace(found, entries=(*found.entries, won(0.1)))
    assert further.gain == pytest.approx(1 - 0.9 * 0.8 * 0.9)


def test_the_first_lines_say_what_was_gained_by_what_and_what_to_deploy() -> None:
    found = tuned(ledger(won(0.1), FAILED), "opt_level=5")
    assert gain_line(found.ledger) == (
        "10.0% lower latency (by the candidate's race): 1.8 instead of 2 ms, by opt_level=5"
    )
    assert deploy_line(found).startswith("deploy model.tuned: batch 8, ")
    assert "baseline" not in deploy_line(found)


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
    line = gain_line(msgspec.structs.replace(raced(found, 0.2), terms=terms))
    assert line == (
        "1.25 times the baseline's throughput (95 %: 1.11 to 1.43): 625 instead of 500 samples/s, "
        "by opt_level=5"
    )


def test_nothing_better_is_the_baseline_and_nothing_tried_is_no_table() -> None:
    assert gain_line(ledger(FAILED)) == "no candidate is better than the baseline: 2 ms"
    assert deploy_line(tuned(ledger(FAILED))).endswith(" (the baseline)")
    console = Console(file=io.StringIO(), width=200)
    console.print(tuned_view(tuned(ledger())))
    assert "candidate  " not in console.file.getvalue()  # type: ignore[attr-defined]


def test_every_candidate_has_a_row_in_a_result_and_on_the_page() -> None:
    found = ledger(won(0.1), FAILED)
    result = tuned(found, "opt_level=5")
    assert repr(result).startswith(
        "<Tuned: 10.0% lower latency (by the candidate's race): 1.8 instead of 2 ms"
    )
    rows = result.rows()
    assert [(row["candidate"], row["measured_gain"]) for row in rows] == [
        ("opt_level=5", 0.1),
        ("tiling=full", None),
    ]
    collected = Collected(
        folder="model.tuned", name="model.tuned", manifest=examples.manifest(), ledger=found
    )
    panels = report_page(collected).sections[-1].panels
    (table,) = (block for block in panels["tuning"] if isinstance(block, Table))
    assert [row[0] for row in table.rows] == ["opt_level=5", "tiling=full"]


def test_a_build_that_was_not_tuned_has_no_such_panel() -> None:
    page = report_page(Collected(folder="m", name="m", manifest=examples.manifest()))
    assert not any("tuning" in section.panels for section in page.sections)
