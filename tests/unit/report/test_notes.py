"""The notes under a result."""

from __future__ import annotations

from tests.support.examples import report
from trtopt.report.bench import bench_notes
from trtopt.report.notes import Note, Severity, grouped, note_lines, plain


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


def at_batches(*findings: tuple[int, str]) -> list[Note]:
    return [Note(Severity.FINDING, text, batch) for batch, text in findings]


def test_texts_that_differ_only_in_figures_are_one_line_with_their_ranges() -> None:
    found = at_batches(
        (1, "unstable: 812.8%, over 2.5%"),
        (8, "unstable: 571.4%, over 2.5%"),
        (32, "unstable: 1,235.5%, over 2.5%"),
    )
    assert grouped(found) == ["unstable: 571.4 to 1,235.5%, over 2.5% at batch 1, 8, 32"]
    assert grouped(plain(["batch 1 is only in one file", "batch 8 is only in one file"])) == [
        "batch 1 is only in one file",
        "batch 8 is only in one file",
    ]


def test_other_texts_keep_lines_of_their_own_in_the_order_in_which_they_came() -> None:
    found = at_batches((8, "too hot"), (8, "drifted by +1.5%"), (32, "too hot"), (8, "too hot"))
    assert grouped(found) == ["too hot at batch 8, 32", "drifted by +1.5% at batch 8"]


def test_digits_within_words_are_no_figures() -> None:
    """Layers and types differ by their digits: they must not be merged."""
    assert grouped(at_batches((1, "conv1 in float16"), (8, "conv2 in float16"))) == [
        "conv1 in float16 at batch 1",
        "conv2 in float16 at batch 8",
    ]


def test_figures_are_ordered_by_value_and_keep_their_signs() -> None:
    found = at_batches((1, "by +10.0 ms"), (2, "by -9.0 ms"))
    assert grouped(found) == ["by -9.0 to +10.0 ms at batch 1, 2"]
    found = at_batches((1, "of 999, too few"), (2, "of 1,000, too few"))
    assert grouped(found) == ["of 999 to 1,000, too few at batch 1, 2"]


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
    texts = [note.text for note in bench_notes(report()) if note.text]
    assert len(texts) == len(set(texts))
