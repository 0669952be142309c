"""Text as it may be shown: that of models, files and libraries commands no terminal and forges no line."""

from __future__ import annotations

from collections.abc import Sequence


def visible(told: str) -> str:
    """Control characters, line breaks and what is no character at all, written as escapes."""
    if told.isprintable():
        return told
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in told)


def visible_lines(told: str) -> str:
    """The same of text with lines of its own: all but the first are indented, so that none stands alone."""
    return "\n    ".join(map(visible, told.split("\n")))


def counted(count: int, noun: str) -> str:
    """`1 sample`, `2 samples`: for nouns whose plural ends in s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def some_of(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


_SPELLINGS = {"–": "-", "—": "-", "…": "...", "→": "->", "×": "x", "±": "+/-", "≤": "<=", "≥": ">=", "µ": "u"}
"""What a stream writes where its encoding lacks a character."""


def spelled_out(error: UnicodeError) -> tuple[str, int]:
    """A codec's error handler: `…` is `...` where the encoding lacks it, any other character an escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    escaped = (_SPELLINGS.get(one) or one.encode("ascii", "backslashreplace").decode() for one in lacking)
    return "".join(escaped), error.end


def size_text(size_bytes: int) -> str:
    """A size with its unit."""
    return f"{size_bytes / 2**30:,.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:,.1f} MiB"
