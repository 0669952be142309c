"""The parts of a page: questions with sections, sections with panels, panels with blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Cell = str | float | int | None
Spec = dict[str, Any]
"""A chart in Vega-Lite's JSON, or in Vega's where its `$schema` says so."""


@dataclass(frozen=True)
class Lines:
    """Sentences, one below the other; warnings are set off in colour."""

    lines: Sequence[str]
    are_warnings: bool = False


@dataclass(frozen=True)
class Figure:
    """One headline figure and its label."""

    name: str
    value: str
    remark: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Figures:
    """Several figures side by side."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Command:
    """A shell command and what it does."""

    text: str
    about: str = ""


@dataclass(frozen=True)
class Step:
    """Something worth doing next: what, why (with the measured figures), and the command if one does it."""

    what: str
    why: str
    command: str = ""


@dataclass(frozen=True)
class Steps:
    """Next steps, the most worthwhile first."""

    steps: Sequence[Step]


@dataclass(frozen=True)
class Missing:
    """A part of the page without data: its title, and the command that creates the data, if any does."""

    title: str
    command: str = ""


@dataclass(frozen=True)
class Column:
    """`digits` are decimals; a `share` from 0 to 1 is shown in percent."""

    name: str
    kind: Literal["text", "number", "share"] = "text"
    digits: int = 0


@dataclass(frozen=True)
class Table:
    """Rows of cells; `details` has (name, value) pairs per row, which unfold under its first cell."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    details: Sequence[Sequence[tuple[str, str]]] = ()
    sorted_by: int | None = None
    """The column to sort by at first, largest first; None: in the given order."""


def known_columns(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]]
) -> tuple[list[Column], list[list[Cell]]]:
    """The columns that are not empty, and the rows' cells in them."""
    filled = [place for place in range(len(columns)) if any(row[place] not in (None, "") for row in rows)]
    return [columns[place] for place in filled], [[row[place] for place in filled] for row in rows]


@dataclass(frozen=True)
class Chart:
    """`title` says what is drawn, `text` what it shows, for readers who cannot see it.

    `zooms`: its signal `span` is the visible range, which the page's buttons change.
    """

    title: str
    spec: Spec
    text: str
    height: int = 260
    is_small: bool = False
    """Whether it is one of several placed side by side where the page is wide enough."""
    zooms: bool = False


Block = Lines | Figures | Command | Steps | Table | Chart


def says_something(blocks: Iterable[Block]) -> bool:
    """Whether there is more in them than empty lists of sentences."""
    return any(not isinstance(block, Lines) or block.lines for block in blocks)


@dataclass(frozen=True)
class Panel:
    """One subject of a section, such as an engine; the page shows one panel at a time."""

    label: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Section:
    """A part of the page that folds out under its heading."""

    id: str
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Question:
    """A reader's question: its short answer on show, and the details in sections below it."""

    id: str
    title: str
    answer: Sequence[Block]
    sections: Sequence[Section]


@dataclass(frozen=True)
class Mark:
    """Whether the figures are trustworthy, in a word and a sentence."""

    level: Literal["good", "caution", "bad"]
    text: str


@dataclass(frozen=True)
class Page:
    """A whole page: title, facts of its subject, the answer above the fold, the questions below it.

    `answer` and `charts` are the two columns above the fold; `missing` has what lacks data.
    """

    title: str
    facts: Sequence[str]
    mark: Mark | None
    answer: Sequence[Block]
    charts: Sequence[Block]
    questions: Sequence[Question]
    missing: Sequence[Missing] = ()
