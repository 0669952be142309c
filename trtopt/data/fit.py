"""Whether arrays fit a model's inputs, and their conversion to the inputs' types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.data.random_inputs import is_state
from trtopt.data.readers import Arrays, Rows
from trtopt.errors import DataError
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.records import Shape, TensorSpec


def rows_of(inputs: Sequence[TensorSpec], size: int) -> Rows:
    """How many rows of each input make up one batch.

    Where some first axes are open, `size` samples lie along those, and the other inputs are given whole with
    every batch. Where all are fixed, a batch takes as many rows of each as its axis has. Where an input has
    the samples along a later axis, by the axis's name or as a recurrent layer's state, all are given whole.
    """
    if _names_later(inputs):
        return {spec.name: None for spec in inputs}
    is_open = any(spec.shape and isinstance(spec.shape[0], str) for spec in inputs)
    rows: dict[str, int | None] = {}
    for spec in inputs:
        first = spec.shape[0] if spec.shape else None
        rows[spec.name] = size if isinstance(first, str) else None if is_open else first
    return rows


def _first_names(inputs: Sequence[TensorSpec]) -> set[str]:
    return {spec.shape[0] for spec in inputs if spec.shape and isinstance(spec.shape[0], str)}


def _names_later(inputs: Sequence[TensorSpec]) -> bool:
    """Whether an input has the samples along a later axis."""
    names = _first_names(inputs)
    return any(
        not names.isdisjoint(set(spec.shape[1:]) - {"?"}) or (names and is_state(spec.shape))
        for spec in inputs
    )


def sample_axes(inputs: Sequence[TensorSpec]) -> dict[str, int]:
    """Along which axis each input has the samples, where one has them along a later one.

    Empty where none does, or where first axes of several names leave open which of them is the samples'.
    """
    names = _first_names(inputs)
    if len(names) != 1 or not _names_later(inputs):
        return {}
    (name,) = names
    axes = {}
    for spec in inputs:
        if name in spec.shape and (name != "?" or spec.shape[0] == name):
            axes[spec.name] = spec.shape.index(name)
        elif is_state(spec.shape):
            axes[spec.name] = 1
    return axes


def samples_in(batch: Arrays, inputs: Sequence[TensorSpec]) -> int:
    """How many samples a batch holds: along `sample_axes`, else the longest first axis; 1 without any."""
    axes = sample_axes(inputs)
    if axes:
        return max(int(batch[name].shape[axis]) for name, axis in axes.items())
    return max((len(array) for array in batch.values() if array.ndim), default=1)


def cut(batch: Arrays, axes: Mapping[str, int], size: int) -> Iterator[Arrays]:
    """`batch` in parts of at most `size` samples, which lie along `axes`; other inputs are in each part."""
    counts = {name: batch[name].shape[axis] for name, axis in axes.items()}
    first = next(iter(counts))
    for name, count in counts.items():
        if count != counts[first]:
            raise DataError(
                f"inputs {first!r} and {name!r} hold {counts[first]} and {count} samples, along axes "
                f"{axes[first]} and {axes[name]}",
                "give as many of each",
            )
    for start in range(0, counts[first], size):
        places = range(start, min(start + size, counts[first]))
        yield {
            name: array.take(places, axes[name]) if name in axes else array for name, array in batch.items()
        }


def fit_input(spec: TensorSpec, array: NDArray[Any], rows: int | None, first: int) -> NDArray[Any]:
    """`array` in the type of the input `spec`; its first row is sample number `first`."""
    _check_shape(spec, array, rows)
    dtype = numpy_dtype(spec.dtype)
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
        array = array.view(dtype)  # .npy has no name for types that NumPy lacks, such as bfloat16
    numbers = first if rows is not None else None
    given = convert_input(spec.name, array, dtype, numbers)
    if given is array:
        _check_values(spec.name, array, given, numbers)
    return given


def convert_input(
    name: str, array: NDArray[Any], dtype: np.dtype[Any], first: int | None = 0
) -> NDArray[Any]:
    """The values of input `name` in its type, if that is of their kind and holds them.

    `first` is the number of the sample in its first row; None: its rows are no samples.
    """
    if array.dtype == dtype:
        return array
    if not np.can_cast(array.dtype, dtype, casting="same_kind") and array.dtype.kind + dtype.kind != "iu":
        raise DataError(
            f"input {name!r}: data of type {array.dtype} does not fit {dtype} (sample {first or 0})",
            instead_of_floats(dtype)
            if array.dtype.kind == "f" and dtype.kind in "iu"
            else f"convert the array: array.astype({str(dtype)!r})",
        )
    with np.errstate(over="ignore", invalid="ignore"):
        given = array.astype(dtype)
    _check_values(name, array, given, first)
    return given


def _check_values(name: str, given: NDArray[Any], converted: NDArray[Any], first: int | None) -> None:
    """Values must be finite, and the input's type must hold them: floats up to rounding, integers exactly."""
    if converted.dtype.kind in "OSU" or (given.dtype == converted.dtype and given.dtype.kind in "iub"):
        return
    if given.dtype.kind not in "iu":
        bad = ~np.isfinite(converted)
    elif converted.dtype.kind in "iu":
        bad = converted != given
    else:
        with np.errstate(invalid="ignore"):
            bad = converted.astype(given.dtype) != given
    if not bad.any():
        return
    place = np.unravel_index(int(np.argmax(bad)), bad.shape)
    value = given[place]
    where = f" of sample {first + int(place[0])}" if first is not None and place else ""
    is_finite = given.dtype.kind in "iub" or np.isfinite(value)
    is_rounded = is_finite and converted.dtype.kind in "fV" and np.isfinite(converted[place])
    raise DataError(
        f"input {name!r}: value {value}{where} "
        + (f"does not fit {converted.dtype}" if is_finite else "is not finite"),
        f"if it may be rounded, convert the array: array.astype({str(converted.dtype)!r})"
        if is_rounded
        else "clean or scale the data: it decides types and scales, and one such value spoils them",
    )


def instead_of_floats(dtype: np.dtype[Any]) -> str:
    """What an input of integers takes: floats that are converted lose fractions, wide integers may wrap."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    integers = f"give integers from {low} to {high}{', such as raw pixels' if dtype == np.uint8 else ''}"
    return f"{integers}; for an INT8 input of --io, trtopt.pack makes them" if dtype == np.int8 else integers


def _check_shape(spec: TensorSpec, array: NDArray[Any], rows: int | None) -> None:
    found, wanted = array.shape, spec.shape
    if rows is not None:
        found, wanted = found[1:], wanted[1:]
    if not has_axes(found, wanted) or (rows is not None and array.ndim == 0):
        what = "samples of shape" if rows is not None else "shape"
        remedy = (
            "give arrays with samples along the first axis and the shape that the model takes"
            if rows is not None
            else "give this input once, in its full shape: it has no axis of samples"
        )
        raise DataError(f"input {spec.name!r}: {what} {found}, expected {_shown(wanted)}", remedy)


def has_axes(lengths: Sequence[int], shape: Sequence[int | str]) -> bool:
    """Whether axes of these lengths are those of a shape, some of which may be open."""
    return len(lengths) == len(shape) and all(
        isinstance(axis, str) or axis == length for axis, length in zip(shape, lengths, strict=True)
    )


def _shown(shape: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def check_lengths(lengths: Mapping[str, int], rows: Rows) -> None:
    """All arrays, of `lengths` rows, must hold the same number of samples."""
    batches = {name: lengths[name] / count for name, count in rows.items() if count and name in lengths}
    for name, count in batches.items():
        reference = next(iter(batches))
        if count != batches[reference]:
            ours, theirs = rows[name], rows[reference]
            needed = "" if ours == theirs else f", {theirs} and {ours} of which make a batch"
            raise DataError(
                f"inputs {reference!r} and {name!r} have {lengths[reference]} and {lengths[name]} rows"
                f"{needed}: they do not hold equally many batches",
                "give every input the rows of equally many batches, along its first axis",
            )


def repeat_rows(name: str, parts: Sequence[NDArray[Any]], shape: Shape) -> NDArray[Any]:
    """The rows of `parts`, one after the other, as one array of `shape`: cut or repeated as needed.

    Of scalars the first: one holds for all samples.
    """
    for part in parts:
        if part.shape[1:] != shape[1:]:
            raise DataError(
                f"input {name!r}: samples of shape {part.shape[1:]}, expected {shape[1:]}",
                "give samples of the shape that the engine was built for",
            )
    if not sum(part.size for part in parts):
        raise DataError(f"input {name!r}: the data holds no samples of it", "give at least one")
    joined = parts[0] if len(parts) == 1 or not shape else np.concatenate(parts)
    return joined if joined.shape == shape else np.resize(joined, shape)


def missing(name: str, present: Sequence[str]) -> DataError:
    """The error for an input that the data lacks."""
    shown = ", ".join(map(repr, present)) or "none"
    return DataError(
        f"the input data has no array named {name!r} (it has {shown})",
        "name the arrays like the model's inputs",
    )
