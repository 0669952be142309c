"""The parts of a page: sections with panels, panels with blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Cell = str | float | int | None
Spec = dict[str, Any]
"""A chart in Vega-Lite's JSON, or in Vega's where its `$schema` says so."""


@dataclass(frozen=True)
class Lines:
    """Sentences, one below the other."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Figure:
    """One headline figure and its label."""

    name: str
    value: str
    remark: str = ""


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
class Missing:
    """A missing part, and the command that creates it."""

    what: str
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
    """`title` describes the chart, for screen readers too."""

    title: str
    spec: Spec
    height: int = 260
    is_small: bool = False
    """Whether it is one of several placed side by side where the page is wide enough."""


Block = Lines | Figures | Command | Missing | Table | Chart


@dataclass(frozen=True)
class Panel:
    """One subject of a section, such as an engine; the page shows one panel at a time."""

    label: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Section:
    """A part of the page with its own heading."""

    id: str
    title: str
    panels: Sequence[Panel]
