"""New constants; large ones go into files, a part at a time where they are made so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from trtopt.onnxio import model_file
from trtopt.onnxio.model_file import spooled, spooled_parts

_STRETCH = 1 << 21
"""Values at a time."""


def runs_of_rows(array: np.ndarray[Any, Any], multiple: int = 1) -> Iterator[Any]:
    """Slices that cut an array, which may be large, into runs of so many rows or of multiples of them."""
    if not array.ndim:
        yield ...
        return
    step = max(1, _STRETCH * len(array) // max(array.size, 1) // multiple) * multiple
    for start in range(0, len(array), step):
        yield slice(start, start + step)


def constant(values: np.ndarray[Any, Any], name: str, spool: Path | None) -> onnx.TensorProto:
    """A new constant; a large one in a file of its own, if there is a spool."""
    if spool is not None and values.nbytes >= model_file.SPOOLED_BYTES:
        return spooled(values, name, spool)
    return onnx.numpy_helper.from_array(values, name)


def constant_of_parts(
    parts: Iterable[np.ndarray[Any, Any]], dtype: Any, shape: Sequence[int], name: str, spool: Path | None
) -> onnx.TensorProto:
    """As `constant`, of values that come in runs of rows: of a large one, one is in memory at a time."""
    if spool is not None and math.prod(shape) * np.dtype(dtype).itemsize >= model_file.SPOOLED_BYTES:
        return spooled_parts(parts, dtype, shape, name, spool)
    runs = list(parts)
    values = np.concatenate(runs) if len(runs) > 1 else runs[0] if runs else np.empty(shape, dtype)
    return onnx.numpy_helper.from_array(values.astype(dtype, copy=False).reshape(shape), name)
