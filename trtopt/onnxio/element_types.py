"""Element types by name, the ones NumPy lacks included, how wide they are, and the difference of values."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.errors import DataError

_EXTENSION_TYPES = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "int4",
    "uint4",
    "float4_e2m1fn",
)


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The dtype of that name; types that NumPy lacks come from ml_dtypes (which onnx brings)."""
    if name in _EXTENSION_TYPES:
        import ml_dtypes

        extension: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
        return extension
    try:
        return np.dtype(name)
    except TypeError:
        raise DataError(
            f"an input or output has an element type that cannot be measured ({name})",
            "cut strings and other such tensors off the model, or feed them as numbers",
        ) from None


def bits_of(name: str) -> int:
    """How wide a type of that name is: `float8_e4m3fn` has 8 bits; without a number it is one of bytes."""
    number = re.search(r"\d+", name)
    return int(number.group()) if number else 8


def gaps(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.float64]:
    """|first - second|: integers are subtracted as integers, all else in FP64, at most its largest number."""
    if first.dtype.kind in "iub" and second.dtype.kind in "iub":
        unsigned = [array.dtype == np.uint64 for array in (first, second)]
        if unsigned[0] != unsigned[1]:  # NumPy has no type that holds the values of both
            return np.asarray(abs(first.astype(object) - second.astype(object)), np.float64)
        wide = [array.astype(np.uint64 if unsigned[0] else np.int64) for array in (first, second)]
        return np.asarray((np.maximum(*wide) - np.minimum(*wide)).astype(np.uint64), np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        gap = np.abs(first.astype(np.float64) - second.astype(np.float64))
    return np.asarray(np.minimum(gap, np.finfo(np.float64).max))
