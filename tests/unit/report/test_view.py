"""One view, four faces: each has the columns that are for it, and none takes a name for markup."""

from __future__ import annotations

from io import StringIO

import pytest

from tests.support import examples
from trtopt.cli.console import console
from trtopt.report.bench import bench_notes
from trtopt.report.html.page import Mark, Page, Section, page_of
from trtopt.report.view import (
    Column,
    Lines,
    Note,
    Severity,
    Table,
    View,
    grouped,
    note_lines,
    plain,
    short,
    shown,
    table,
)

ODD = "a|b [bold]<i>\x1b"
SEEN = "a|b [bold]<i>\\x1b"
COLUMNS: list[Column[tuple[str, float | None]]] = [
    Column("name", lambda row: row[0]),
    Column("ms", lambda row: row[1], ".2f"),
    Column("more", lambda row: row[1], ".4f", face="page"),
    Column("empty", lambda row: None, face="page"),
    Column("absent", lambda row: None, is_optional=True),
    Column("unknown", lambda row: None),
]


def rows(**rest: object) -> Table:
    return table("times", COLUMNS, [(ODD, 1.5), ("slow", 12.25), ("c", None)], **rest)


def text(view: View, width: int, *, verbose: bool = False) -> list[str]:
    written = StringIO()
    screen = console(file=written)
    screen.width = width
    screen.print(view.terminal(verbose=verbose), crop=False)
    return [line.rstrip() for line in written.getvalue().splitlines()]


def test_a_terminal_has_its_columns_the_largest_first_and_counts_the_others() -> None:
    shown = text(View("", [rows(sorted_by="ms", top=1, rest=("2 more", 1.5, None, None, None, None))]), 80)
    assert [line.split() for line in shown] == [
        ["times"],
        ["name", "ms", "unknown"],
        ["slow", "12.25", "–"],
        ["2", "more", "1.50", "–"],
    ]


def test_details_and_captions_are_shown_with_v() -> None:
    view = View("title", [rows(caption="how"), Lines(["why"], is_detail=True), Lines(["page"], face="page")])
    assert not {"how", "why", "page"} & {*text(view, 80)}
    assert {"how", "why"} <= {*text(view, 80, verbose=True)}


def test_columns_stand_closer_where_they_would_not_fit() -> None:
    view = View("", [rows()])
    head = text(view, 80)[1]
    assert text(view, len(head)) == text(view, 80)
    assert text(view, len(head) - 1)[1].split() == head.split()


def test_what_may_be_copied_is_not_broken_into_lines() -> None:
    line = "trtopt cast --exclude " + " ".join(f"/block{n}/Conv" for n in range(20))
    assert text(View("", [Lines([line], is_copied=True)]), 40) == [line]
    assert len(text(View("", [Lines([line])]), 40)) > 1


def test_markdown_begins_with_the_headline_escapes_cells_and_ends_with_the_notes() -> None:
    view = View("", [rows(), Lines(["below"])], [Note(Severity.NOTE, "noted", 8)])
    assert view.markdown() == (
        "**times**\n\n| name | ms | unknown |\n|:--|--:|:--|\n"
        "| a\\|b [bold]\\<i>\\\\x1b | 1.50 | – |\n| slow | 12.25 | – |\n| c | – | – |\n"
        "\n- below\n\n- noted at batch 8\n"
    )


@pytest.mark.parametrize("title", ["", "title"])
@pytest.mark.parametrize("outcome", ["", "outcome"])
def test_markdown_says_nothing_twice(title: str, outcome: str) -> None:
    view = View(title, [Lines(["first", "second"]), rows()], outcome=outcome)
    words = view.markdown().replace("**", "").replace("- ", "").split("\n")
    assert words[0] == (outcome or title or "first")
    for said in filter(None, (title, outcome, "first", "second", "times")):
        assert words.count(said) == 1


def test_a_notebook_has_the_columns_of_the_page_as_text() -> None:
    notes = [Note(Severity.DOUBT, "unsteady (~)", 8), Note(Severity.NOTE, "a note")]
    shown = View("title", [rows(), Lines(["page"], face="page")], notes).html()
    assert shown.endswith("<p>page</p>\n<p>unsteady (~) at batch 8</p>\n<p>a note</p>")
    assert "<th>more</th><th>unknown</th>" in shown
    assert "<td>a|b [bold]&lt;i&gt;\\x1b</td><td>1.50</td><td>1.5000</td>" in shown
    assert "samples/s" in examples.report()._repr_html_()


def test_the_page_writes_figures_as_the_terminal_does() -> None:
    signed: list[Column[float]] = [
        Column("change", lambda one: one, "+.1%"),
        Column("error", lambda one: one, ".2e"),
        Column("rate", lambda one: one, ".4g"),
    ]
    panels = {"": [table("t", signed, [0.5])]}
    page = Page("t", (), Mark("good", "ok"), [], [], [Section("q", "Q?", panels)])
    page_text = page_of(page, "", "")
    assert '"texts":[["+50.0%","5.00e-01","0.5"]]' in page_text
    assert '"rows":[[0.5,0.5,0.5]]' in page_text  # which the page sorts by
    assert shown(-1234.6, ".4g") == "-1,235"
    assert shown(999.6, ".3g") == "1,000"
    assert [shown(rate, ".4g") for rate in (0.25, 190.21, 1234.6, 5_000_000.0)] == [
        *("0.25", "190.2", "1,235", "5,000,000")
    ]


# ── notes ─────────────────────────────────────────────────────────────────────────────────────────────


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
    texts = [note.text for note in bench_notes(examples.report()) if note.text]
    assert len(texts) == len(set(texts))


def test_with_v_a_note_has_its_figures_and_some_are_only_there() -> None:
    notes = [
        Note(Severity.HINT, "copy-bound", 8, "move less", "copy-bound: 2 ms"),
        Note(Severity.FINDING, "", 8, in_full="two groups discarded"),
    ]
    assert note_lines(notes) == ["note: copy-bound at batch 8: move less"]
    assert note_lines(notes, verbose=True) == [
        "note: two groups discarded at batch 8",
        "note: copy-bound: 2 ms at batch 8: move less",
    ]


def test_a_count_has_three_digits_and_the_prefix_that_they_need() -> None:
    assert [short(one) for one in (None, 0, 999, 999_499, 999_500)] == ["?", "0", "999", "999k", "1M"]
    assert f"{short(8_204_000_000, ' ')}FLOP" == "8.2 GFLOP"
