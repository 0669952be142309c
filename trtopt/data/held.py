"""Samples that are in memory already."""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.data.reader import Arrays, Rows


class HeldReader:
    """One dict of arrays."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    @property
    def names(self) -> tuple[str, ...]:
        """The arrays' names."""
        return tuple(self._arrays)

    @property
    def lengths(self) -> dict[str, int]:
        """The first axis of each array."""
        return {name: (array.shape or (1,))[0] for name, array in self._arrays.items()}

    def pieces(self, rows: Rows) -> Iterator[Arrays]:
        """All of it at once."""
        yield {name: self._arrays[name] for name in rows if name in self._arrays}
