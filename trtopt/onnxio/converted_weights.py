"""Weights in another type, a stretch at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.onnxio.model_file import ModelFile, array_of, is_external, spooled_parts
from trtopt.onnxio.nonfinite_weights import stretches


def dtype_of(low: int) -> np.dtype[Any]:
    """NumPy's form of ONNX's element type."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(low))


def converted(tensor: onnx.TensorProto, model: ModelFile, name: str, to: int) -> onnx.TensorProto:
    """The weight in the type `to`, called `name`; a large one goes into the model's spool."""
    array = array_of(tensor, model.folder)
    if is_external(tensor) and model.spool is not None:
        parts = (_in_type(part, to) for part in stretches(array))
        return spooled_parts(parts, dtype_of(to), array.shape, name, model.spool)
    return onnx.helper.make_tensor(name, to, tensor.dims, _in_type(array, to).tobytes(), raw=True)


def _in_type(values: NDArray[Any], to: int) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        return values.astype(dtype_of(to))
