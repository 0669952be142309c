"""Which rows of what came together go into which batch: pure."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

_KNOWN = 256
"""Most batches are of single rows, and of few sizes."""


class Cut(NamedTuple):
    """Rows `start` to `stop` of a part are rows `at` and on of a batch."""

    part: int
    start: int
    stop: int
    at: int


@lru_cache(_KNOWN)
def assign_rows(
    rows_of_parts: tuple[int, ...], rows_of_batches: tuple[int, ...]
) -> tuple[tuple[Cut, ...], ...]:
    """Deal the parts' rows out to the batches, in order; there are as many rows in all of either."""
    dealt: list[tuple[Cut, ...]] = []
    part = start = 0
    for rows in rows_of_batches:
        cuts: list[Cut] = []
        at = 0
        while at < rows:
            taken = min(rows - at, rows_of_parts[part] - start)
            cuts.append(Cut(part, start, start + taken, at))
            at += taken
            start += taken
            if start == rows_of_parts[part]:
                part, start = part + 1, 0
        dealt.append(tuple(cuts))
    return tuple(dealt)
