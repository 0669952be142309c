"""`module:function` of the user's: called for every reading, it yields dicts from names to arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from trtopt.data.reader import Arrays, Rows
from trtopt.errors import DataError
from trtopt.files.user_code import function_of_user, where


class FunctionReader:
    """What a function yields, each dict some samples of every input."""

    names = None
    lengths = None

    def __init__(self, reference: str) -> None:
        self._reference = reference
        self._last: object = None
        self._function = function_of_user(reference)

    def pieces(self, rows: Rows) -> Iterator[Arrays]:
        """One dict a piece."""
        try:
            feeds = self._function()
            if not isinstance(feeds, Iterable) or isinstance(feeds, Mapping):
                raise TypeError(f"it returned {type(feeds).__name__}")
            if feeds is self._last and iter(feeds) is feeds:
                raise DataError(
                    f"{self._reference} returns an iterator that was read before",
                    "it is called for every pass over the data: return a new iterator each time",
                )
            self._last = feeds
            for feed in feeds:
                if not isinstance(feed, Mapping):
                    raise TypeError(f"it yielded {type(feed).__name__}")
                yield {name: np.asarray(feed[name]) for name in rows if name in feed}
        except DataError:
            raise
        except Exception as error:
            raise DataError(
                f"{self._reference} failed: {where(error)}",
                "it must take no arguments and yield dicts from input names to arrays, samples first",
            ) from error
