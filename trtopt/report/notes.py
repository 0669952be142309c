"""The notes on a result: the gravest first, the same finding of several batch sizes in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

MOST_NOTES = 3
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")


class Severity(IntEnum):
    """How much a note matters; the gravest first."""

    FAILURE = 0
    DOUBT = 1
    """About whether the figures can be believed."""
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
