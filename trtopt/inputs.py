"""Input data: the user's, or seeded random values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtopt.dtypes import numpy_dtype
from trtopt.errors import DataError
from trtopt.records import Shape, TensorSpec

Arrays = dict[str, NDArray[np.generic]]


def load_npz(path: Path) -> Arrays:
    """The arrays of an `.npz` file, named like the model's inputs, samples along the first axis.

    Raises:
        DataError: no such file, not an `.npz`, or it holds pickled objects.
    """
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise DataError(f"{path}: no such file", "give an .npz with arrays named like the inputs") from None
    except Exception as error:  # noqa: BLE001  (zipfile, zlib, struct and NumPy each raise their own)
        raise DataError(
            f"{path}: cannot be read as .npz without pickles: {error}",
            "write it with numpy.savez(path, **arrays)",
        ) from None


def batch_from(
    data: Mapping[str, NDArray[np.generic]], inputs: Sequence[TensorSpec], shapes: Mapping[str, Shape]
) -> Arrays:
    """The first samples of `data` as one batch of `shapes`, repeated if there are too few samples.

    Raises:
        DataError: an input is missing, or its samples have another shape or a type that loses information.
    """
    batch: Arrays = {}
    for spec in inputs:
        if spec.name not in data:
            present = ", ".join(map(repr, data)) or "none"
            raise DataError(
                f"the input data has no array named {spec.name!r} (it has {present})",
                "name the arrays like the model's inputs",
            )
        samples, wanted = data[spec.name], shapes[spec.name]
        if samples.shape[1:] != wanted[1:] or samples.shape[:1] == (0,):
            raise DataError(
                f"input {spec.name!r}: samples of shape {samples.shape[1:]} (of {samples.shape[:1]}), "
                f"expected {wanted[1:]}",
                "give arrays with samples along the first axis and the shape the engine was built for",
            )
        if not np.can_cast(samples.dtype, spec.dtype, casting="same_kind"):
            raise DataError(
                f"input {spec.name!r}: data of type {samples.dtype} does not fit {spec.dtype}",
                "convert the array before saving it",
            )
        count = wanted[0] if wanted else 1
        batch[spec.name] = np.resize(samples, (count, *samples.shape[1:])).astype(spec.dtype)
    return batch


def random_batch(inputs: Sequence[TensorSpec], shapes: Mapping[str, Shape], seed: int = 0) -> Arrays:
    """Seeded values: floats from a standard normal, integers and booleans from {0, 1}.

    Zeros would hide faults and can run faster than real data; integers stay small because they may be
    indices into tables of unknown length.
    """
    generator = np.random.default_rng(seed)
    batch: Arrays = {}
    for spec in inputs:
        dtype, shape = numpy_dtype(spec.dtype), shapes[spec.name]
        if dtype.kind in "iub":
            batch[spec.name] = generator.integers(0, 2, shape).astype(dtype)
        else:
            batch[spec.name] = generator.standard_normal(shape, dtype=np.float32).astype(dtype)
    return batch
