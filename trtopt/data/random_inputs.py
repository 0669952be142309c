"""Seeded random input data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trtopt.onnxio.element_types import numpy_dtype
from trtopt.records import Shape, TensorSpec

Arrays = dict[str, NDArray[np.generic]]


def integer_range(dtype: np.dtype[np.generic]) -> tuple[int, int]:
    """Where random integers start, and where they end, exclusive: pixels and quantised values use it all.

    Wider integers stay small because they may be indices into tables of unknown length.
    """
    if dtype in (np.dtype(np.uint8), np.dtype(np.int8)):
        limits = np.iinfo(dtype.name)
        return int(limits.min), int(limits.max) + 1
    return 0, 2


def random_batch(inputs: Sequence[TensorSpec], shapes: Mapping[str, Shape]) -> Arrays:
    """Seeded values: floats from a standard normal, integers as in `integer_range`, booleans from {0, 1}.

    Zeros would hide faults and can run faster than real data.
    """
    generator = np.random.default_rng(0)
    batch: Arrays = {}
    for spec in inputs:
        dtype, shape = numpy_dtype(spec.dtype), shapes[spec.name]
        if dtype.kind in "iub":
            batch[spec.name] = generator.integers(*integer_range(dtype), shape).astype(dtype)
        else:
            batch[spec.name] = generator.standard_normal(shape, dtype=np.float32).astype(dtype)
    return batch
