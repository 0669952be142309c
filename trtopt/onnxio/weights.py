"""Weights by themselves: where the values of each lie, new ones a stretch at a time, and unsound ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.onnxio import model_file
from trtopt.onnxio.graph_walk import graphs_of
from trtopt.onnxio.model_file import ModelFile, array_of, spooled_parts
from trtopt.onnxio.shape_inference import FLOATS


def dtype_of(low: int) -> np.dtype[Any]:
    """NumPy's form of ONNX's element type."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(low))


def converted(tensor: onnx.TensorProto, model: ModelFile, name: str, to: int) -> onnx.TensorProto:
    """The weight in the type `to`, called `name`; a large one goes into the model's spool."""
    array = array_of(tensor, model.folder)
    with np.errstate(over="ignore"):
        parts = (part.astype(dtype_of(to)) for part in stretches(array))
        return constant_of_parts(parts, dtype_of(to), array.shape, name, model.spool)


# New constants; large ones go into files, a part at a time where they are made so.


_AT_ONCE = 1 << 21
"""Values in a part, so that scratch memory stays small next to the weights."""


def runs_of_rows(array: np.ndarray[Any, Any], multiple: int = 1) -> Iterator[Any]:
    """Slices that cut an array, which may be large, into runs of so many rows or of multiples of them."""
    if not array.ndim:
        yield ...
        return
    step = max(1, _AT_ONCE * len(array) // max(array.size, 1) // multiple) * multiple
    for start in range(0, len(array), step):
        yield slice(start, start + step)


def constant(values: np.ndarray[Any, Any], name: str, spool: Path | None) -> onnx.TensorProto:
    """A new constant; a large one in a file of its own, if there is a spool."""
    return constant_of_parts([values], values.dtype, values.shape, name, spool)


def constant_of_parts(
    parts: Iterable[np.ndarray[Any, Any]], dtype: Any, shape: Sequence[int], name: str, spool: Path | None
) -> onnx.TensorProto:
    """As `constant`, of values that come in runs of rows: of a large one, one is in memory at a time."""
    if spool is not None and math.prod(shape) * np.dtype(dtype).itemsize >= model_file.SPOOLED_BYTES:
        return spooled_parts(parts, dtype, shape, name, spool)
    runs = list(parts)
    values = np.concatenate(runs) if len(runs) > 1 else runs[0] if runs else np.empty(shape, dtype)
    return onnx.numpy_helper.from_array(values.astype(dtype, copy=False).reshape(shape), name)


# Weights that hold NaN or infinity, read a stretch at a time.


FLOATS_AND_DOUBLE = (*FLOATS, onnx.TensorProto.DOUBLE)


def weight_alarms(model: ModelFile) -> tuple[str, ...]:
    """What to say of floating-point weights with NaN or infinity in them, wherever they lie."""
    odd = [
        item.name
        for part in graphs_of(model.proto.graph)
        for item in (
            *part.initializer,
            *(a.t for node in part.node for a in node.attribute if a.HasField("t")),
        )
        if item.data_type in FLOATS_AND_DOUBLE and not _is_sound(array_of(item, model.folder))
    ]
    if not odd:
        return ()
    count = f"{len(odd)} weights hold" if len(odd) > 1 else "1 weight holds"
    return (f"{count} NaN or infinity, such as {odd[0]!r}: export the model from an intact checkpoint",)


def _is_sound(array: NDArray[Any]) -> bool:
    """Finite; or a limit (one infinite value), or a mask: minus infinity among zeros, or in whole rows."""
    if all(bool(np.isfinite(values).all()) for values in stretches(array)):
        return True
    wide = np.asarray(array, np.float32)
    if np.isnan(wide).any():
        return False
    masked = wide == -np.inf
    if wide.size == 1 or bool(((wide == 0) | masked).all()):
        return True
    rows = masked.reshape(len(wide), -1) if wide.ndim > 1 else masked[:0]
    return bool(rows.size and (rows.all(1) | ~rows.any(1)).all() and np.isfinite(wide[~masked]).all())


def stretches(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The values of an array, so many at a time that copies of them stay small."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, _AT_ONCE):
        yield flat[start : start + _AT_ONCE]
