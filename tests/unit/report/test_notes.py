"""The notes under a result."""

from __future__ import annotations

from tests.support.examples import report
from trtopt.report.notes import Note, Severity, grouped, note_lines, plain
from trtopt.report.trust import bench_notes


def test_the_same_finding_of_several_batches_is_one_line_the_gravest_first() -> None:
    notes = [
        Note(Severity.NOTE, "no CUDA graph"),
        *(Note(Severity.FINDING, "latency has two modes", batch) for batch in (32, 1, 8)),
        *(Note(Severity.HINT, "unstable", batch, "sample for longer") for batch in (1, 8)),
        Note(Severity.FAILURE, "passes are missing", 8),
    ]
    assert grouped(notes) == [
        "passes are missing at batch 8",
        "latency has two modes at batch 1, 8, 32",
        "unstable at batch 1, 8: sample for longer",
        "no CUDA graph",
    ]


def test_figures_keep_a_batchs_findings_together_and_other_notes_apart() -> None:
    at_batches = [Note(Severity.FINDING, f"{count} of 17 groups discarded", count) for count in (2, 3)]
    assert grouped(at_batches) == ["2 of 17 groups discarded at batch 2, 3"]
    assert grouped(plain(["batch 1 is only in one file", "batch 8 is only in one file"])) == [
        "batch 1 is only in one file",
        "batch 8 is only in one file",
    ]


def test_of_more_than_three_notes_the_last_line_counts_the_rest() -> None:
    notes = plain("abcd")
    assert note_lines(notes[:3]) == ["note: a", "note: b", "note: c"]
    assert note_lines(notes) == ["note: a", "note: b", "2 more notes: -v shows them"]
    assert note_lines(notes, verbose=True) == ["note: a", "note: b", "note: c", "note: d"]


def test_doubts_come_before_findings_and_are_never_left_out() -> None:
    doubts = [Note(Severity.DOUBT, text) for text in "wxyz"]
    notes = [*plain("abc"), *doubts, Note(Severity.FAILURE, "f")]
    assert note_lines(notes) == [f"note: {text}" for text in "fwxyz"] + ["3 more notes: -v shows them"]
    assert note_lines(doubts) == [f"note: {text}" for text in "wxyz"]


def test_a_reports_notes_name_each_once() -> None:
    texts = [note.text for note in bench_notes(report())]
    assert len(texts) == len(set(texts))
