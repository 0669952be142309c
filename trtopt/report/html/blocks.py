"""What a page is made of: sections with panels, panels with blocks."""

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
    """One figure that stands out, and what it is of."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Figures:
    """Figures side by side."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Command:
    """A command as it is typed, with what it does."""

    text: str
    about: str = ""


@dataclass(frozen=True)
class Missing:
    """What is not there, and the command that makes it."""

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
    """Rows of cells; `details` has for each row what unfolds under its first cell, as (what, told) pairs."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    details: Sequence[Sequence[tuple[str, str]]] = ()
    sorted_by: int | None = None
    """A column to start with, the largest first; None: as given."""


def known_columns(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]]
) -> tuple[list[Column], list[list[Cell]]]:
    """The columns of which some row knows anything, and the rows' cells in them."""
    kept = [place for place in range(len(columns)) if any(row[place] not in (None, "") for row in rows)]
    return [columns[place] for place in kept], [[row[place] for place in kept] for row in rows]


@dataclass(frozen=True)
class Chart:
    """`title` says what it shows, to those who cannot see it too."""

    title: str
    spec: Spec
    height: int = 260
    is_small: bool = False
    """One of several that stand side by side where there is room."""


Block = Lines | Figures | Command | Missing | Table | Chart


@dataclass(frozen=True)
class Panel:
    """One subject of a section, such as an engine; of several the reader sees one at a time."""

    label: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading of its own."""

    id: str
    title: str
    panels: Sequence[Panel]
