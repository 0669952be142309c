"""The JSON that Polygraphy writes for inputs: a list of dicts from names to encoded arrays.

An encoded array is `{"array": BASE64 OF AN .npy}`; the text is held in memory, the arrays are decoded one
dict at a time.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trtopt.data.npz import MAX_HEADER
from trtopt.data.reader import Arrays, Rows
from trtopt.errors import DataError
from trtopt.files.bounded_reading import read_bounded

_REMEDY = "write it with polygraphy.json.save_json([{name: array, …}, …], path), or use an .npz"


class _Encoded(msgspec.Struct):
    """One array; Polygraphy's other fields are ignored."""

    array: str


class JsonReader:
    """The feed dicts of one file, each some samples of every input."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._feeds = msgspec.json.decode(read_bounded(path), type=list[dict[str, _Encoded]])
        except (ValueError, RecursionError, OSError) as error:  # what is no UTF-8 is a ValueError too
            raise DataError(f"{path}: not Polygraphy's JSON of inputs: {error}", _REMEDY) from None

    lengths = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names in any of the dicts."""
        return tuple(dict.fromkeys(name for feed in self._feeds for name in feed))

    def pieces(self, rows: Rows) -> Iterator[Arrays]:
        """One dict of the file a piece."""
        for feed in self._feeds:
            yield {name: self._decoded(name, feed[name]) for name in rows if name in feed}

    def _decoded(self, name: str, encoded: _Encoded) -> NDArray[Any]:
        try:
            content = base64.b64decode(encoded.array, validate=True)
            loaded = np.load(io.BytesIO(content), allow_pickle=False, max_header_size=MAX_HEADER)
        except Exception as error:  # noqa: BLE001  (binascii, zipfile and NumPy each raise their own)
            raise DataError(f"{self._path}: array {name!r} cannot be decoded: {error}", _REMEDY) from None
        if not isinstance(loaded, np.ndarray):
            raise DataError(f"{self._path}: {name!r} is not an array", _REMEDY)
        return loaded
