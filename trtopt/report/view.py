"""What is shown of a record: tables, charts, text, notes; for a terminal, Markdown, notebooks and the page.

Of notes the gravest come first, and the same finding of several batch sizes is one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property, lru_cache, singledispatch
from html import escape
from types import UnionType
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, Union, get_args, get_origin

import msgspec
import rich.table
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from trtopt.printable import visible
from trtopt.records import Record
from trtopt.records.base import Cell, Row

Subject = TypeVar("Subject")
Item = TypeVar("Item")
Face = Literal["", "terminal", "page"]
"""The only one that shows something; empty: all do."""

UNKNOWN = "–"
_MANY_NODES = 3
_WIDEST = 10_000
"""Columns of a table that is measured, not shown."""

MOST_NOTES = 3
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")


# ── notes ─────────────────────────────────────────────────────────────────────────────────────────────


class Severity(IntEnum):
    """How much a note matters; the gravest first."""

    FAILURE = 0
    DOUBT = 1
    """About what the figures are of, and whether they can be believed."""
    FINDING = 2
    HINT = 3
    NOTE = 4


@dataclass(frozen=True)
class Note:
    """A finding on one batch size, or on all (None); `remedy` is what to do about it.

    `in_full` is the text with its figures, if there is another, for -v and the page; where `text` is empty,
    the note is only there.
    """

    severity: Severity
    text: str
    batch: int | None = None
    remedy: str = ""
    in_full: str = ""


def grouped(notes: Iterable[Note], *, in_full: bool = False) -> list[str]:
    """One line per finding, with the batch sizes that have it, and the ranges of figures that differ."""
    groups: dict[tuple[Severity, str], list[Note]] = {}
    for note in notes:
        if in_full and note.in_full:
            note = replace(note, text=note.in_full)
        if note.text:
            alike = note.text if note.batch is None else _NUMBER.sub("#", note.text)
            groups.setdefault((note.severity, alike), []).append(note)
    return [_line(members) for _, members in sorted(groups.items(), key=lambda item: item[0][0])]


def plain(texts: Iterable[str]) -> list[Note]:
    """Notes that a record holds."""
    return [Note(Severity.NOTE, text) for text in texts]


def note_lines(notes: Iterable[Note], *, verbose: bool = False) -> list[str]:
    """All failures and doubts, and others up to three lines, the last one for those that are left out.

    With `verbose` all.
    """
    notes = list(notes)
    lines = [f"note: {line}" for line in grouped(notes, in_full=verbose)]
    shown = max(MOST_NOTES - 1, len(grouped(note for note in notes if note.severity <= Severity.DOUBT)))
    if verbose or len(lines) <= max(MOST_NOTES, shown):
        return lines
    return [*lines[:shown], f"{len(lines) - shown} more notes: -v shows them"]


def _line(members: Sequence[Note]) -> str:
    first = members[0]
    ranges = map(_range, zip(*(_NUMBER.findall(note.text) for note in members), strict=True))
    text = _NUMBER.sub(lambda _: next(ranges), first.text)
    remedy = f": {first.remedy}" if first.remedy else ""
    return f"{text}{at_batches([note.batch for note in members])}{remedy}"


def _range(figures: Iterable[str]) -> str:
    ordered = sorted(set(figures), key=lambda figure: float(figure.replace(",", "")))
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


def at_batches(batches: Iterable[int | None]) -> str:
    """` at batch 1, 8`, or nothing where no batch size is known."""
    known = sorted({batch for batch in batches if batch is not None})
    return f" at batch {', '.join(map(str, known))}" if known else ""


GateOutcome = Literal["ok", "slower", "wrong", "undecided", "untrustworthy", "failed"]


@dataclass(frozen=True)
class GateRow:
    """What a gate says of one thing; `ms` is its latency, then its interval of 95 %, as far as known."""

    name: str
    outcome: GateOutcome
    reason: str
    ms: Sequence[float] = ()


# ── tables and text ───────────────────────────────────────────────────────────────────────────────────


def mib(size_bytes: int | None) -> float | None:
    """A size in MiB."""
    return None if size_bytes is None else size_bytes / 2**20


def mib_text(size_bytes: int) -> str:
    """With its unit."""
    return f"{size_bytes / 2**20:.2f} MiB"


def shown(value: float | None, form: str) -> str:
    """A figure in that format; a dash where it is unknown. With `g` digits before the point are whole."""
    if value is None:
        return UNKNOWN
    text = format(value, form)
    return f"{value:,.0f}" if form.endswith("g") and (abs(value) >= 1000 or "e+" in text) else text


def short(count: int | None, space: str = "") -> str:
    """A count with three digits and an SI prefix, after a space where a unit follows: 25.6M, 8.2 G."""
    if count is None:
        return "?"
    rounded = float(f"{count:.3g}")  # 999,999 are 1M
    for size, letter in _PREFIXES:
        if rounded >= size:
            return f"{rounded / size:.3g}{space}{letter}"
    return f"{count}{space}"


def cells_of(record: Record) -> dict[str, Any]:
    """The fields of a record that are one value each, for a row of figures."""
    return {name: getattr(record, name) for name in _fields_of_one_value(type(record))}


@lru_cache
def _fields_of_one_value(kind: type[Record]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind) if _is_cell(field.type))


def _is_cell(hint: object) -> bool:
    """Whether values of a type fill one cell: numbers, texts, choices of texts, or None."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    members = tuple(get_args(one)[0] if get_origin(one) is Annotated else one for one in members)
    return all(one in get_args(Cell) or get_origin(one) is Literal for one in members)


def each_text(figures: Mapping[str, float], form: str = "") -> str:
    """Every name with its figure: `float16 62.5%, float32 37.5%`."""
    return ", ".join(f"{name} {figure:{form}}" for name, figure in figures.items())


def names_text(nodes: Sequence[str]) -> str:
    """Nodes of one layer, or the first and last of many; empty for none."""
    many = len(nodes) > _MANY_NODES
    return f"{nodes[0]} … {nodes[-1]} ({len(nodes)} nodes)" if many else " + ".join(nodes)


@dataclass(frozen=True)
class Column(Generic[Subject]):
    """`of` is a row's cell, `form` the format of its figures, such as `.3f` or `.1%`; None: it holds words.

    On a terminal a column is `width` wide at least; where there is not enough room, words are cut or folded.
    There a first column that may be cut stands last.
    Only what `is_optional`, or for the page alone, is left out where no row has it.
    """

    name: str
    of: Callable[[Subject], Cell]
    form: str | None = None
    face: Face = ""
    width: int = 0
    fit: Literal["whole", "cut", "fold"] = "whole"
    is_optional: bool = False
    colours: Mapping[str, str] = field(default_factory=dict)


def columns_of(
    names: Iterable[str], of: Callable[[Subject], Sequence[Cell]], form: str | None, **rest: Any
) -> list[Column[Subject]]:
    """A column for each of the values that a row has together."""

    def cell(place: int) -> Callable[[Subject], Cell]:
        return lambda row: of(row)[place]

    return [Column(name, cell(place), form, **rest) for place, name in enumerate(names)]


@dataclass(frozen=True)
class Table:
    """Rows of cells. `caption` says what the figures are: below the table with `-v`, in the page's title.

    `top`: how many rows a terminal shows; `rest` stands for the others. `sorted_by` is the column to sort by,
    at first on the page, largest first. `details` are (name, value) pairs that unfold below a row's cell.
    """

    title: str
    columns: Sequence[Column[Any]]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    top: int | None = None
    rest: Sequence[Cell] | None = None
    face: Face = ""
    details: Sequence[Sequence[tuple[str, str]]] = ()
    sorted_by: str | None = None

    def places(self, face: Face) -> list[int]:
        """Which columns a face has, in its order."""
        found = []
        for place, column in enumerate(self.columns):
            may_go = column.is_optional or "page" in (column.face, self.face)
            is_empty = all(row[place] in (None, "") for row in self.rows)
            if column.face in ("", face) and not (may_go and is_empty):
                found.append(place)
        is_last = face == "terminal" and found and self.columns[found[0]].fit == "cut"
        return [*found[1:], found[0]] if is_last else found

    def on(self, face: Face) -> tuple[list[Column[Any]], list[list[Cell]]]:
        """The columns that a face has, and the cells in them."""
        places = self.places(face)
        return [self.columns[place] for place in places], [
            [row[place] for place in places] for row in self.rows
        ]


def table(title: str, columns: Sequence[Column[Subject]], records: Iterable[Subject], **rest: Any) -> Table:
    """A row for each record."""
    return Table(title, columns, [[column.of(one) for column in columns] for one in records], **rest)


def facts_table(title: str, facts: Mapping[str, str]) -> Table:
    """What is known, by name."""
    columns: list[Column[tuple[str, str]]] = [
        Column("what", lambda pair: pair[0]),
        Column("found", lambda pair: pair[1]),
    ]
    return table(title, columns, facts.items(), face="page")


def facts_of(record: msgspec.Struct, of: str = "") -> dict[str, str]:
    """What a record and those in it hold, by the names of their fields; what is not known is left out."""
    found: dict[str, str] = {}
    for name, value in msgspec.structs.asdict(record).items():
        what = of + name.replace("_", " ")
        if isinstance(value, msgspec.Struct):
            found |= facts_of(value, f"{what} ")
        elif name.endswith("_bytes") and value:
            found[what.removesuffix(" bytes")] = f"{value / 2**20:,.1f} MiB"
        elif value not in (None, "", ()):
            found[what] = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return found


@dataclass(frozen=True)
class Lines:
    """Sentences, one below the other; `is_detail`: on a terminal with `-v` alone.

    `is_copied`: commands and paths, which a terminal must not break into lines.
    """

    lines: Sequence[str]
    style: str = ""
    is_copied: bool = False
    face: Face = ""
    is_detail: bool = False
    are_warnings: bool = False


Spec = dict[str, Any]
"""A chart in Vega-Lite's JSON."""


@dataclass(frozen=True)
class Chart:
    """A drawing, which the page alone has.

    `title` says what is drawn, `text` what it shows, for readers who cannot see it. One that `is_small`
    stands next to others where the page is wide enough; one that `is_folded` opens at a click.
    """

    face: ClassVar[Face] = "page"
    title: str
    spec: Spec
    text: str
    height: int = 260
    is_small: bool = False
    is_folded: bool = False


Block = Table | Lines | Chart


class Late(Generic[Item]):
    """Items that are made, once, when they are first looked at: a result's line needs no tables."""

    def __init__(self, make: Callable[[], Iterable[Item]]) -> None:
        self._make = make

    @cached_property
    def _items(self) -> list[Item]:
        return list(self._make())

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)


@dataclass(frozen=True)
class View:
    """All that is shown of a record, in the order in which it is read; `notes` are what to know about it.

    `outcome` is its line, where neither the title nor the first line says it; `rows` are its main figures
    for programs, with units in their names; `gate` is what an exit code and a CI's files say of it.
    """

    title: str
    blocks: Iterable[Block]
    notes: Iterable[Note] = ()
    outcome: str = ""
    rows: Iterable[Row] = ()
    gate: Sequence[GateRow] = ()

    @property
    def headline(self) -> str:
        """The outcome in a line."""
        if self.outcome or self.title:
            return visible(self.outcome or self.title)
        blocks = self.on("terminal")
        firsts = (next(iter(one.lines), "") if isinstance(one, Lines) else one.title for one in blocks)
        return visible(next(filter(None, firsts), ""))

    def on(self, face: Face, *, verbose: bool = True) -> Iterator[Block]:
        """The blocks that a face has."""
        shown = (one for one in self.blocks if one.face in ("", face))
        return (one for one in shown if verbose or not (isinstance(one, Lines) and one.is_detail))

    def terminal(self, *, verbose: bool = False) -> RenderableType:
        """Text and tables, narrow enough for 80 columns; `verbose` adds details."""
        parts: list[RenderableType] = [Text(self.title, "bold")] if self.title else []
        for block in self.on("terminal", verbose=verbose):
            if isinstance(block, Lines):
                whole = block.is_copied
                parts += [
                    Text(line, block.style, no_wrap=whole, overflow="ignore" if whole else None)
                    for line in block.lines
                ]
            elif isinstance(block, Table):
                parts += [Text(block.title, "bold")] if block.title else []
                parts.append(_Fitting(block))
                parts += [Text(block.caption, "dim")] if block.caption and verbose else []
        return Group(*parts)

    def __rich__(self) -> RenderableType:
        return self.terminal()

    def markdown(self) -> str:
        """The headline, tables and lists for a pull request, with all notes."""
        parts, said = [f"**{_markdown_text(self.headline)}**\n"], {self.headline}
        for block in (Lines([self.title] if self.title else []), *self.on("terminal", verbose=False)):
            if isinstance(block, Table):
                parts.append(_markdown_table(block, said))
            elif isinstance(block, Lines):
                parts.append(_markdown_list([line for line in block.lines if visible(line) not in said]))
        return "\n".join(filter(None, [*parts, _markdown_list(grouped(self.notes))]))

    def html(self) -> str:
        """For notebooks: all rows and columns, the text, and all notes in full, as HTML without scripts."""
        parts = [f"<p><b>{_safe(self.title)}</b></p>"] if self.title else []
        for block in (*self.on("page"), Lines(grouped(self.notes, in_full=True))):
            if isinstance(block, Table):
                parts.append(_html_table(block))
            elif isinstance(block, Lines):
                parts += [f"<p>{_safe(line)}</p>" for line in block.lines]
        return "\n".join(parts)

    def page(self) -> list[Block]:
        """What a page has of it that is not empty: title, blocks, and all notes with their figures."""
        found = (Lines([self.title]), *self.on("page"), Lines(grouped(self.notes, in_full=True)))
        return [one for one in found if not _is_empty(one)]


@singledispatch
def view_of(result: object) -> View:
    """All that is shown of a result: the function that is registered for its type."""
    raise TypeError(f"no view of {type(result).__name__} is registered")


def _is_empty(block: Block) -> bool:
    return not (block.rows if isinstance(block, Table) else isinstance(block, Chart) or any(block.lines))


def cell_text(column: Column[Any], cell: Cell) -> str:
    """A cell's text."""
    return cell if isinstance(cell, str) else shown(cell, column.form or "")


@dataclass(frozen=True)
class _Fitting:
    """A table for a terminal, whose columns stand closer where that saves width that is not there."""

    block: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        drawn = _rich_table(self.block)
        if console.measure(drawn, options=options.update(max_width=_WIDEST)).maximum > options.max_width:
            drawn.padding = (0, 1, 0, 0)
        yield drawn


def _rich_table(block: Table) -> rich.table.Table:
    columns, rows = block.on("terminal")
    drawn = rich.table.Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        drawn.add_column(
            column.name,
            justify="left" if column.form is None else "right",
            no_wrap=column.fit == "whole",
            min_width=column.width or None,
            overflow="fold" if column.fit == "fold" else "ellipsis",
        )
    names = [column.name for column in columns]
    if block.sorted_by in names:
        place = names.index(block.sorted_by)
        rows.sort(key=lambda row: -float(row[place] or 0.0))
    for row in rows[: block.top]:
        drawn.add_row(*map(_rich_cell, columns, row))
    if block.rest is not None and block.top is not None and len(rows) > block.top:
        rest = [block.rest[place] for place in block.places("terminal")]
        drawn.add_row(*map(_rich_cell, columns, rest))
    return drawn


def _rich_cell(column: Column[Any], cell: Cell) -> Text:
    text = visible(cell_text(column, cell))
    if column.fit == "cut":
        return Text(text, no_wrap=True, overflow="ellipsis")
    return Text(text, column.colours.get(text, ""))


def _markdown_table(block: Table, said: Collection[str]) -> str:
    columns, rows = block.on("terminal")
    marks = (":--" if column.form is None else "--:" for column in columns)
    head = [_markdown_row([column.name for column in columns]), f"|{'|'.join(marks)}|"]
    body = (_markdown_row(list(map(cell_text, columns, row))) for row in rows)
    title = visible(block.title)
    return "\n".join([*([] if title in said else [title, ""]), *head, *body]) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_markdown_text, cells))} |"


def _markdown_list(lines: Sequence[str]) -> str:
    return "".join(f"- {_markdown_text(line)}\n" for line in lines)


def _markdown_text(text: str) -> str:
    """What is not to be a cell's end, nor HTML."""
    return re.sub(r"[\\|<]", r"\\\g<0>", visible(text))


def _html_table(block: Table) -> str:
    columns, rows = block.on("page")
    head = "".join(f"<th>{_safe(column.name)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{_safe(text)}</td>' for text in map(cell_text, columns, row))}</tr>"
        for row in rows
    )
    title = "; ".join(filter(None, (block.title, block.caption)))
    return f"<table><caption>{_safe(title)}</caption><tr>{head}</tr>{body}</table>"


def _safe(text: str) -> str:
    return escape(visible(text))
