"""What the kinds of DATA have in common: a run of pieces, each some consecutive samples of every array."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Rows = Mapping[str, int | None]
"""By array: how many rows make up one batch; None for an array that is given whole with every batch."""


class Reader(Protocol):
    """One place that samples come from; it can be read again and again."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """The arrays that are there; None if unknown without reading."""

    @property
    def lengths(self) -> Mapping[str, int] | None:
        """By array: its rows, 1 for one without axes; None if unknown without reading."""

    def pieces(self, rows: Rows) -> Iterator[Arrays]:
        """All samples of the arrays in `rows`, in order.

        A reader that can cut gives `rows` of each at a time, fewer or none once an array ends; others give
        what their files hold at a time. Missing arrays are left out: the caller reports them.
        """
