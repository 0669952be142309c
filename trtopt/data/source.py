"""Samples out of whatever DATA names, a batch at a time, each fitted to the model's inputs."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from trtopt.data.fit import check_lengths, cut, fit_input, missing, repeat_rows, rows_of, sample_axes
from trtopt.data.readers import Arrays, NpzReader, Reader, Rows, read_json, write_npz
from trtopt.errors import DataError, UsageError
from trtopt.files.bounded_reading import sha256_of
from trtopt.files.user_code import function_of_user, names_function, where
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.printable import counted
from trtopt.records import Job, Shape, TensorSpec

_yielded: ContextVar[dict[int, dict[tuple[int, str], tuple[object, ...]]] | None]
_yielded = ContextVar("_yielded", default=None)
"""Of each function, by the place of a dict and an array's name: the array's type, shape and checksum."""


class FunctionReader:
    """What a function yields, each dict some samples of every input.

    Other values in a later pass are refused: outputs of unlike inputs would be compared.
    """

    lengths = None

    def __init__(self, reference: str) -> None:
        self.names: tuple[str, ...] | None = None
        self._reference = reference
        self._last: object = None
        self._function = function_of_user(reference)
        if (known := _yielded.get()) is None:
            _yielded.set(known := {})
        self._yielded = known.setdefault(id(self._function), {})

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
            for place, feed in enumerate(feeds):
                if not isinstance(feed, Mapping):
                    raise TypeError(f"it yielded {type(feed).__name__}")
                self.names = tuple(map(str, feed))
                piece = {name: np.asarray(feed[name]) for name in rows if name in feed}
                for name, array in piece.items():
                    self._require_as_before(place, name, array)
                yield piece
        except DataError:
            raise
        except (Exception, SystemExit) as error:
            raise DataError(
                f"{self._reference} failed: {where(error)}",
                "it must take no arguments and yield dicts from input names to arrays, samples first",
            ) from error

    def _require_as_before(self, place: int, name: str, array: np.ndarray[Any, Any]) -> None:
        found = (array.dtype, array.shape, None if array.dtype.hasobject else zlib.crc32(array.tobytes()))
        if self._yielded.setdefault((place, name), found) != found:
            raise DataError(
                f"{self._reference} yields other values of {name!r} than before",
                "it is called for every pass over the data: shuffle nothing, and seed what is random in it",
            )


_KINDS = (
    "an .npz with arrays named like the inputs, a folder of them, Polygraphy's .json, or FILE.py:function "
    "(module:function), which yields {input name: array}, such as decoded images"
)


def open_data(text: str | Path) -> SampleSource:
    """The samples that `text` names: a path, or `module:function`."""
    path, text = Path(text), str(text)
    if path.is_file() and path.suffix == ".npy":
        program = f'import numpy; numpy.savez("inputs.npz", INPUT=numpy.load({json.dumps(str(path))}))'
        raise UsageError(
            f"{path}: holds one array without a name, and inputs have names",
            f"make an .npz of it, with the name of the model's input: python -c {shlex.quote(program)}",
        )
    if path.is_file() and path.suffix == ".py":
        raise UsageError(f"{path}: names no function", f"give {path}:function, which yields {{name: array}}")
    if files := data_files(path):
        is_json = path.suffix == ".json" and path.is_file()
        return SampleSource(path.name, [read_json(path)] if is_json else [NpzReader(file) for file in files])
    if path.is_dir():
        raise UsageError(f"{path}: holds no .npz files", f"give {_KINDS}")
    if names_function(text):
        return SampleSource(text, [FunctionReader(text)])
    raise UsageError(f"{text}: no such file", f"give {_KINDS}")


def needs_data(what: str, why: str, instead: str = "") -> UsageError:
    """The error of what cannot be done without samples, or with something `instead`."""
    remedy = f"give --data DATA: {_KINDS}"
    return UsageError(f"{what} needs data {why}", f"{remedy}; or {instead}" if instead else remedy)


def data_files(path: Path) -> list[Path]:
    """The files that are read where DATA is a path, in order: it, or the `.npz` files of the folder."""
    if path.is_file():
        return [path]
    return sorted(file for file in path.glob("*.npz") if file.is_file()) if path.is_dir() else []


def fingerprint_of(data: str | Path) -> str:
    """A hash of what is read of DATA: its file; its folder's files with their names; else of the text."""
    path = Path(data)
    if path.is_file():
        return sha256_of(path)
    if path.is_dir():
        hashes = [(file.name, sha256_of(file)) for file in data_files(path)]
        return hashlib.sha256(msgspec.json.encode(hashes)).hexdigest()
    return hashlib.sha256(str(data).encode()).hexdigest()


class SampleSource:
    """Samples that can be read again and again, a batch at a time."""

    def __init__(self, name: str, readers: Sequence[Reader]) -> None:
        self.name = name
        self._readers = readers

    def left_out(self, inputs: Sequence[TensorSpec]) -> int:
        """How many of the last samples fill no batch, where all first axes are fixed; 0 if unknown."""
        rows = rows_of(inputs, 1)
        name, need = next(((name, need) for name, need in rows.items() if need), ("", 0))
        if not need or any(isinstance(axis, str) for spec in inputs for axis in spec.shape[:1]):
            return 0
        lengths = [(reader.lengths or {}).get(name) for reader in self._readers]
        return 0 if None in lengths else sum(length or 0 for length in lengths) % need

    @property
    def is_function(self) -> bool:
        """Whether a function of the user's makes them."""
        return any(isinstance(reader, FunctionReader) for reader in self._readers)

    def has(self, name: str) -> bool:
        """Whether there is such an array, as far as is known without reading."""
        return all(name in (reader.names or ()) for reader in self._readers)

    def types(self, inputs: Sequence[TensorSpec]) -> dict[str, np.dtype[Any]]:
        """In which types the first samples of the inputs are stored."""
        pieces = chain.from_iterable(reader.pieces(rows_of(inputs, 1)) for reader in self._readers)
        return {name: array.dtype for name, array in next(pieces, {}).items()}

    def batches(self, inputs: Sequence[TensorSpec], size: int) -> Iterator[Arrays]:
        """Batches of at most `size` samples, in the inputs' own types; the last may be smaller.

        Samples lie along the first axis. Inputs whose first axis is fixed while others' are open are given
        whole. If every input's first axis is fixed, batches have that size, and samples that do not fill
        one are left out. A batch ends early where other axes change their length.
        """
        rows, axes = rows_of(inputs, size), sample_axes(inputs)
        batch = _Batch(rows, is_open=any(isinstance(axis, str) for spec in inputs for axis in spec.shape[:1]))
        empty = True
        for reader in self._readers:
            check_lengths(reader.lengths or {}, rows)
        for piece in self._pieces(inputs, rows):
            check_lengths({name: len(piece[name]) for name, count in rows.items() if count}, rows)
            for full in batch.add(piece):
                for part in cut(full, axes, size) if axes else (full,):
                    empty = False
                    yield part
        if rest := batch.rest():
            empty = False
            yield rest
        if empty:
            need = next((count for count in rows.values() if count), 1)
            raise DataError(
                f"{self.name}: too few samples for one batch",
                "give at least one sample for each input"
                if batch.is_open
                else f"the model's batch is fixed: give at least {need} samples",
            )

    def first_batch(
        self, inputs: Sequence[TensorSpec], shapes: Mapping[str, Shape], axes: Mapping[str, int] | None = None
    ) -> Arrays:
        """The first samples as one batch of exactly `shapes`, repeated if there are too few.

        `axes` are the model's `sample_axes` where `inputs` are an engine's, whose shapes are fixed.
        """
        if axes := axes or sample_axes(inputs):
            return self._first_along([_open(spec, axes) for spec in inputs], axes, shapes)
        rows: Rows = {spec.name: (shapes[spec.name] or (None,))[0] for spec in inputs}
        found: dict[str, list[np.ndarray]] = {spec.name: [] for spec in inputs}
        for piece in self._pieces(inputs, rows):
            for name, array in piece.items():
                found[name].append(array)
            if all(sum(map(len, found[name])) >= count for name, count in rows.items() if count):
                break
        return {spec.name: repeat_rows(spec.name, found[spec.name], shapes[spec.name]) for spec in inputs}

    def _first_along(
        self, inputs: Sequence[TensorSpec], axes: Mapping[str, int], shapes: Mapping[str, Shape]
    ) -> Arrays:
        """As `first_batch`, for samples along `axes`: of the first piece, and other inputs whole."""
        piece = next(self._pieces(inputs, dict.fromkeys((spec.name for spec in inputs), None)))
        for name, axis in axes.items():
            rows = repeat_rows(name, [np.moveaxis(piece[name], axis, 0)], _turned(shapes[name], axis))
            piece[name] = np.ascontiguousarray(np.moveaxis(rows, 0, axis))
        return piece

    def _pieces(self, inputs: Sequence[TensorSpec], rows: Rows) -> Iterator[Arrays]:
        """Pieces of all readers, each fitted to the inputs."""
        seen = 0
        for piece in chain.from_iterable(reader.pieces(rows) for reader in self._readers):
            for spec in inputs:
                if spec.name not in piece:
                    names = dict.fromkeys(name for reader in self._readers for name in reader.names or ())
                    if spec.name in names:
                        raise DataError(
                            f"{self.name}: no array named {spec.name!r} is with sample {seen}",
                            "give all inputs for each sample",
                        )
                    raise missing(spec.name, tuple(names) or tuple(piece))
            yield {spec.name: fit_input(spec, piece[spec.name], rows[spec.name], seen) for spec in inputs}
            seen += next((len(piece[name]) for name, count in rows.items() if count is not None), 1)


def _open(spec: TensorSpec, axes: Mapping[str, int]) -> TensorSpec:
    """The input with any number of samples along its axis in `axes`."""
    shape = tuple("?" if axes.get(spec.name) == axis else length for axis, length in enumerate(spec.shape))
    return msgspec.structs.replace(spec, shape=shape)


def _turned(shape: Shape, axis: int) -> Shape:
    """The shape with an axis moved to the front."""
    return (shape[axis], *shape[:axis], *shape[axis + 1 :])


class _Batch:
    """Collects pieces into batches."""

    def __init__(self, rows: Rows, *, is_open: bool) -> None:
        self._rows = rows
        self._parts: list[Arrays] = []
        self.is_open = is_open

    def add(self, piece: Arrays) -> Iterator[Arrays]:
        """Take a piece; yields the batches that are full now."""
        if self._parts and not self._belongs(piece) and (rest := self.rest()):
            yield rest
        self._parts.append(piece)
        while (batch := self._take(short=False)) is not None:
            yield batch

    def rest(self) -> Arrays | None:
        """What is left as a smaller batch; nothing where the model fixes the batch."""
        batch = self._take(short=True) if self.is_open and self._parts else None
        self._parts = []
        return batch

    def _belongs(self, piece: Arrays) -> bool:
        """Whether the piece can share a batch with the pieces so far."""
        last = self._parts[-1]
        return all(
            piece[name].shape[1:] == last[name].shape[1:]
            if count is not None
            else np.array_equal(piece[name], last[name])
            for name, count in self._rows.items()
        )

    def _take(self, *, short: bool) -> Arrays | None:
        """A batch off the front: a full one, or with `short` whatever there is."""
        if not self._parts:
            return None
        sampled = {name: count for name, count in self._rows.items() if count is not None}
        have = {name: sum(len(part[name]) for part in self._parts) for name in sampled}
        if not sampled:
            return self._parts.pop(0)
        if short:
            sampled = {name: min(count, have[name]) for name, count in sampled.items()}
        if any(have[name] < count or not count for name, count in sampled.items()):
            return None
        joined = {name: np.concatenate([part[name] for part in self._parts]) if len(self._parts) > 1
                  else self._parts[0][name] for name in sampled}  # fmt: skip
        whole = {name: array for name, array in self._parts[-1].items() if name not in sampled}
        batch = {name: joined[name][:count] for name, count in sampled.items()}
        left = {name: joined[name][count:] for name, count in sampled.items()}
        self._parts = [whole | left] if any(map(len, left.values())) else []
        return {name: (batch | whole)[name] for name in self._rows}


# What a look at samples shows: preprocessing left out, types converted, samples that no batch takes.


_BYTE = 255
_BRIGHT = 200
"""A picture in bytes reaches it; few other whole numbers up to 255 do."""
_SAMPLES = 8


def range_notes(inputs: Sequence[TensorSpec], source: SampleSource) -> tuple[str, ...]:
    """Floating-point inputs whose first samples are converted, or whole numbers up to 255; samples left out.

    A function of the user's is not called for this: what it does may end the process.
    """
    if source.is_function:
        return ()
    first: Arrays = next(iter(source.batches(inputs, _SAMPLES)), {})
    notes = [*_converted(inputs, source), *_unscaled(first)]
    if left := source.left_out(inputs):
        notes.append(
            f"the last {counted(left, 'sample')} fill no batch of the model's size and were not used"
        )
    return tuple(notes)


def _converted(inputs: Sequence[TensorSpec], source: SampleSource) -> Iterator[str]:
    """Conversions to floats of which the types alone do not say that they lose nothing."""
    stored = source.types(inputs)
    for spec in inputs:
        given, dtype = stored[spec.name], numpy_dtype(spec.dtype)
        if dtype.kind in "fV" and given.kind in "fiu" and not np.can_cast(given, dtype):
            yield f"input {spec.name!r}: the data is {given} and was converted to {spec.dtype}"


def _unscaled(arrays: Arrays) -> Iterator[str]:
    for name, array in arrays.items():
        if array.dtype.kind in "iubOSU" or not array.size:
            continue
        values = np.asarray(array, np.float32)
        high = float(values.max())
        if values.min() >= 0 and _BRIGHT <= high <= _BYTE and bool((values == np.round(values)).all()):
            yield (f"input {name!r}: values reach {high:g}: if the model expects normalised input, scale it")


# Samples of a user's function, read once in a process of its own and kept as files.


_BATCH = 32
_KEPT_FREE = 1 << 30
"""Bytes that stay free on the disk: a function may yield without end."""


class SamplesJob(Job[int], frozen=True, kw_only=True, tag="samples"):
    """A worker's job: write all samples of `data` for `inputs` into `folder`, for `open_data`.

    Its result is how many files there are.
    """

    data: str
    inputs: tuple[TensorSpec, ...]
    folder: str


def write_samples(job: SamplesJob, progress: Callable[[str, float | None], None]) -> int:
    """Write a file per batch; returns how many there were."""
    folder = Path(job.folder)
    progress("importing", None)
    written = 0
    source = open_data(job.data)
    progress(_waiting(0), None)
    for batch in source.batches(job.inputs, _BATCH):
        size = sum(array.nbytes for array in batch.values())
        if shutil.disk_usage(folder).free < size + _KEPT_FREE:
            raise DataError(
                f"{job.data}: the disk of {folder} is full after {written * _BATCH} samples",
                "yield fewer samples, or free some space",
            )
        # NumPy's files have no types of others, such as bfloat16
        stored = {
            name: one.astype(np.float32) if one.dtype.kind == "V" else one for name, one in batch.items()
        }
        write_npz(folder / f"{written:06}.npz", stored)
        written += 1
        progress(_waiting(written), None)
    return written


def _waiting(written: int) -> str:
    return f"waiting for samples {written * _BATCH + 1} to {(written + 1) * _BATCH}"
