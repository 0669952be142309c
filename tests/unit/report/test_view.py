"""One view, four faces: each has the columns that are for it, and none takes a name for markup."""

from __future__ import annotations

from io import StringIO

from tests.support import examples
from trtopt.cli.console import console
from trtopt.report.html.page import Mark, Page, Question, page_of
from trtopt.report.notes import Note, Severity
from trtopt.report.view import Column, Lines, Table, View, shown, table

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


def test_what_may_be_copied_is_not_broken_into_lines() -> None:
    line = "trtopt cast --exclude " + " ".join(f"/block{n}/Conv" for n in range(20))
    assert text(View("", [Lines([line], is_copied=True)]), 40) == [line]
    assert len(text(View("", [Lines([line])]), 40)) > 1


def test_markdown_escapes_cells_and_ends_with_the_notes() -> None:
    view = View("", [rows(), Lines(["below"])], [Note(Severity.NOTE, "noted", 8)])
    assert view.markdown() == (
        "times\n\n| name | ms | unknown |\n|:--|--:|:--|\n"
        "| a\\|b [bold]<i>\\x1b | 1.50 | – |\n| slow | 12.25 | – |\n| c | – | – |\n"
        "\n- below\n\n- noted at batch 8\n"
    )


def test_a_notebook_has_the_columns_of_the_page_as_text() -> None:
    notes = [Note(Severity.DOUBT, "unsteady (~)", 8), Note(Severity.NOTE, "page")]
    shown = View("title", [rows(), Lines(["page"], face="page")], notes).html()
    assert shown.endswith("<p>page</p>\n<p>unsteady (~) at batch 8</p>")  # a note on the page is not repeated
    assert "<th>more</th><th>unknown</th>" in shown
    assert "<td>a|b [bold]&lt;i&gt;\\x1b</td><td>1.50</td><td>1.5000</td>" in shown
    assert "samples/s" in examples.report()._repr_html_()


def test_the_page_writes_figures_as_the_terminal_does() -> None:
    signed: list[Column[float]] = [
        Column("change", lambda one: one, "+.1%"),
        Column("error", lambda one: one, ".2e"),
        Column("rate", lambda one: one, ".4g"),
    ]
    page = Page("t", (), Mark("good", "ok"), [], [], [], [Question("q", "Q?", [table("t", signed, [0.5])])])
    page_text = page_of(page, "", "")
    assert '"kind":"share","digits":1,"significant":null,"sign":"exceptZero"' in page_text
    assert '"kind":"number","digits":2,"significant":null,"sign":"auto","notation":"scientific"' in page_text
    assert '"kind":"number","digits":0,"significant":4,"sign":"auto"' in page_text
    assert [shown(rate, ".4g") for rate in (0.25, 190.21, 1234.6, 5_000_000.0)] == [
        *("0.25", "190.2", "1,235", "5,000,000")
    ]
