"""The kinds of DATA: runs of pieces, each some consecutive samples of every array."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trtopt.errors import DataError
from trtopt.files.bounded_reading import read_bounded

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


# `.npz` files, read a few rows at a time.
#
# An `.npz` is a zip file of `.npy` members: a header with type and shape, then the values, row after row.
# Rows are decompressed as they are needed, so that a file of any size costs one batch of memory. An array in
# Fortran order has no consecutive rows and is read whole, up to a bound.
#
# Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.


MAX_HEADER = 1024
"""Characters of an `.npy` header; NumPy writes 128 for a plain array. The time that its reader takes for one
that it cannot read grows faster than the square of this."""
MAX_BYTES = 4 << 30
"""The most that one batch of one array may take in memory."""
MAX_FORTRAN_BYTES = 256 << 20
"""The most that an array in Fortran order may take: it is decompressed whole and copied row by row, which
takes seconds a GiB."""
_SUFFIX = ".npy"
_MAX_NAME_BYTES = 60_000  # a zip file has 16 bits for the length
_NPZ_REMEDY = "write it with numpy.savez(path, **arrays)"


@dataclass(frozen=True)
class _Member:
    """One array of the file, as its header describes it."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool


class NpzReader:
    """The arrays of one `.npz`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._archive() as archive:
            self._members = {
                name.removesuffix(_SUFFIX): self._read_header(archive, name)
                for name in archive.namelist()
                if name.endswith(_SUFFIX)
            }
        if not self._members:
            raise DataError(f"{path}: holds no arrays", _NPZ_REMEDY)

    @property
    def names(self) -> tuple[str, ...]:
        """The arrays' names."""
        return tuple(self._members)

    @property
    def lengths(self) -> dict[str, int]:
        """The first axis of each array."""
        return {name: (member.shape or (1,))[0] for name, member in self._members.items()}

    def pieces(self, rows: Rows) -> Iterator[Arrays]:
        """One batch a piece; see `Reader.pieces`."""
        wanted = {name: count for name, count in rows.items() if name in self._members}
        with self._archive() as archive, ExitStack() as stack:
            whole = {
                name: next(self._rows(stack, archive, name, None))
                for name, count in wanted.items()
                if count is None or not self._members[name].shape
            }
            streams = {
                name: self._rows(stack, archive, name, count)
                for name, count in wanted.items()
                if count is not None and self._members[name].shape
            }
            if not streams:
                yield whole
                return
            while any(map(len, (piece := {name: next(stream) for name, stream in streams.items()}).values())):
                yield whole | piece

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        """The file as a zip archive; whatever zipfile, zlib and NumPy raise becomes a DataError."""
        try:
            with zipfile.ZipFile(self._path) as archive:
                yield archive
        except (DataError, MemoryError):
            raise
        except FileNotFoundError:
            raise DataError(
                f"{self._path}: no such file", "give an .npz with arrays named like the inputs"
            ) from None
        except Exception as error:  # noqa: BLE001  (each library raises its own)
            raise self._unreadable(str(error)) from None

    def _unreadable(self, reason: str) -> DataError:
        return DataError(f"{self._path}: cannot be read as .npz without pickles: {reason}", _NPZ_REMEDY)

    def _read_header(self, archive: zipfile.ZipFile, name: str) -> _Member:
        """The member's header, once the archive's size of it agrees."""
        with archive.open(name) as file:
            member = _header(file)
            needed = file.tell() + math.prod(member.shape) * member.dtype.itemsize
        if member.dtype.hasobject:
            raise self._unreadable(f"array {name.removesuffix(_SUFFIX)!r} holds Python objects")
        if archive.getinfo(name).file_size != needed:
            raise self._unreadable(
                f"array {name.removesuffix(_SUFFIX)!r} needs {needed} bytes, "
                f"{archive.getinfo(name).file_size} are there"
            )
        return member

    def _rows(
        self, stack: ExitStack, archive: zipfile.ZipFile, name: str, count: int | None
    ) -> Iterator[NDArray[Any]]:
        """The array, `count` rows at a time and at last none; whole, without a count."""
        member = self._members[name]
        file = stack.enter_context(archive.open(name + _SUFFIX))
        _header(file)
        if count is None or member.fortran:
            array = self._values(file, name, member, member.shape)
            yield from [array] if count is None else _cut(array, count)
            return
        left = member.shape[0] if member.shape else 0
        while True:
            shape = (min(count, left), *member.shape[1:])
            left -= shape[0]
            yield self._values(file, name, member, shape)

    def _values(self, file: IO[bytes], name: str, member: _Member, shape: tuple[int, ...]) -> NDArray[Any]:
        size = math.prod(shape) * member.dtype.itemsize
        if size > (MAX_FORTRAN_BYTES if member.fortran else MAX_BYTES):
            raise DataError(
                f"{self._path}: array {name!r} would take {size / 2**30:.1f} GiB at once",
                "use smaller batches; save arrays in C order: numpy.ascontiguousarray(array)",
            )
        content = file.read(size)
        if len(content) != size:
            raise self._unreadable(f"array {name!r} is cut short")
        array = np.frombuffer(content, member.dtype)
        return array.reshape(shape, order="F" if member.fortran else "C")


_ADDED = 2
"""`isbuiltin` of types that others add to NumPy's."""


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]], comment: bytes = b"") -> None:
    """Write arrays of any names; `numpy.savez` takes none that is called like one of its own arguments."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.comment = comment
        for name, array in arrays.items():
            if "\0" in name or len(name.encode()) > _MAX_NAME_BYTES:
                raise DataError(
                    f"array {name[:80]!r}: an .npz cannot hold that name", "give the tensor another name"
                )
            plain = array.astype(str) if array.dtype.kind == "O" else array  # of strings
            if plain.dtype.isbuiltin == _ADDED:  # of FP8 E5M2 it would write a name that it cannot read
                plain = plain.view(f"V{plain.dtype.itemsize}")
            with archive.open(name + _SUFFIX, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(plain, order="C"), allow_pickle=False)


def read_npz(path: Path) -> Arrays:
    """All arrays of a file that `write_npz` wrote."""
    reader = NpzReader(path)
    return next(reader.pieces(dict.fromkeys(reader.names)))


def _header(file: IO[bytes]) -> _Member:
    """The `.npy` header at the start of a member."""
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f".npy version {version}")
    shape, fortran, dtype = read(file, MAX_HEADER)
    return _Member(dtype=dtype, shape=shape, fortran=fortran and len(shape) > 1)


def _cut(array: NDArray[Any], count: int) -> Iterator[NDArray[Any]]:
    """`count` rows at a time, and at last none."""
    for start in range(0, len(array), count):
        yield array[start : start + count]
    while True:
        yield array[:0]


# The JSON that Polygraphy writes for inputs: a list of dicts from names to encoded arrays.


_JSON_REMEDY = "write it with polygraphy.json.save_json([{name: array, …}, …], path), or use an .npz"


class HeldReader:
    """Feed dicts in memory, each some samples of every input."""

    lengths = None

    def __init__(self, feeds: Sequence[Arrays]) -> None:
        self._feeds = feeds

    @property
    def names(self) -> tuple[str, ...]:
        """The names in any of the dicts."""
        return tuple(dict.fromkeys(name for feed in self._feeds for name in feed))

    def pieces(self, rows: Rows) -> Iterator[Arrays]:
        """One dict a piece."""
        for feed in self._feeds:
            yield {name: feed[name] for name in rows if name in feed}


def read_json(path: Path) -> HeldReader:
    """The feed dicts of a file that Polygraphy wrote."""
    from polygraphy.json import from_json
    from polygraphy.logger import G_LOGGER

    try:
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1):  # errors are told here, once
            feeds: list[Arrays] = from_json(read_bounded(path).decode())
    except Exception as error:  # noqa: BLE001  (JSON, base64, NumPy and Polygraphy each raise their own)
        raise DataError(f"{path}: not Polygraphy's JSON of inputs: {error}", _JSON_REMEDY) from None
    if not isinstance(feeds, list) or not all(isinstance(feed, dict) for feed in feeds):
        raise DataError(f"{path}: not a list of dicts", _JSON_REMEDY)
    for name, array in (item for feed in feeds for item in feed.items()):
        if not isinstance(array, np.ndarray):
            raise DataError(f"{path}: {name!r} is not an array", _JSON_REMEDY)
    return HeldReader(feeds)
