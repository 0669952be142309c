"""Arrays in the types and formats that an engine's inputs and outputs have, and back.

`vectorise` and `unvectorise` know the formats alone; `pack_array` and `unpack_array` types and scales too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.data.fit import convert_input, has_axes
from trtopt.errors import DataError
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.records import TensorSpec
from trtopt.records.tensors import VECTORS, TypedTensor, nchw_sample

Array = NDArray[Any]


def vectorise(array: Array, layout: str) -> Array:
    """An NCHW array in a vectorised format, channels padded with zeros; unchanged in a linear layout."""
    if layout not in VECTORS:
        return array
    batch, channels, height, width = array.shape
    width_of = VECTORS[layout]
    vectors = -(-channels // width_of)
    padded = np.zeros((batch, vectors * width_of, height, width), array.dtype)
    padded[:, :channels] = array
    if layout.startswith("hwc"):
        return np.ascontiguousarray(padded.transpose(0, 2, 3, 1))
    split = padded.reshape(batch, vectors, width_of, height, width)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2))


def unvectorise(array: Array, layout: str, channels: int) -> Array:
    """The NCHW array of so many channels that a vectorised one holds; unchanged in a linear layout."""
    if layout not in VECTORS:
        return array
    if layout.startswith("hwc"):
        return np.ascontiguousarray(array.transpose(0, 3, 1, 2)[:, :channels])
    batch, vectors, height, width, width_of = array.shape
    joined = array.transpose(0, 1, 4, 2, 3).reshape(batch, vectors * width_of, height, width)
    return np.ascontiguousarray(joined[:, :channels])


def quantize_array(name: str, array: Array, scale: float, *, saturate: bool) -> Array:
    """Q(array) as QuantizeLinear computes it: division, rounding half to even, INT8."""
    with np.errstate(over="ignore", invalid="ignore"):
        levels = np.rint(array.astype(np.float32) / np.float32(scale))
    _refuse(name, array, ~np.isfinite(levels), "is not finite", "clean the data")
    low, high = (np.iinfo(np.int8).min, np.iinfo(np.int8).max)
    if not saturate:
        beyond = (levels < low) | (levels > high)
        reason = f"is outside INT8 at scale {scale:.6g} (±{scale * high:.6g})"
        remedy = "calibrate on such data, or clip as QuantizeLinear does: pack(..., saturate=True)"
        _refuse(name, array, beyond, reason, remedy)
    result: Array = np.clip(levels, low, high).astype(np.int8)
    return result


def pack_array(
    spec: TensorSpec, array: Array, tensor: TypedTensor | None, *, saturate: bool = False
) -> Array:
    """`array`, of the shape that the graph's input `spec` takes, in the engine's type and format."""
    dtype = numpy_dtype(spec.dtype)
    if not _fits(spec, array):
        raise DataError(
            f"input {spec.name!r}: an array of shape {array.shape}, expected {spec.shape}",
            "give a batch in the shape of the graph's input; pack makes the engine's format of it",
        )
    if tensor is not None and tensor.scale is not None and array.dtype != dtype:
        if array.dtype.kind not in "fV":  # V: bfloat16
            raise DataError(
                f"input {spec.name!r}: sample 0 holds {array.dtype} values: levels of {dtype} or numbers?",
                f"give floats, which are quantised, or levels as {dtype}",
            )
        array = quantize_array(spec.name, array, tensor.scale, saturate=saturate)
    given = np.asarray(convert_input(spec.name, array, dtype), order="C")
    return vectorise(given, tensor.layout if tensor is not None else "nchw")


def _fits(spec: TensorSpec, array: Array) -> bool:
    """Whether a batch, of any size, has the tensor's axes."""
    return array.ndim == len(spec.shape) and has_axes(array.shape[1:], spec.shape[1:])


def _refuse(name: str, array: Array, bad: NDArray[np.bool_], reason: str, remedy: str) -> None:
    if not bad.any():
        return
    place = np.unravel_index(int(np.argmax(bad)), bad.shape)
    sample = f" of sample {int(place[0])}" if place else ""
    raise DataError(f"input {name!r}: value {array[place]}{sample} {reason}", remedy)


def unpack_array(spec: TensorSpec, array: Array, tensor: TypedTensor | None) -> Array:
    """What the engine's output holds, in the shape of the graph's output; INT8 with a scale becomes FP32."""
    layout = tensor.layout if tensor is not None else "nchw"
    if layout in VECTORS:
        channels = spec.shape[1]
        if not isinstance(channels, int):
            raise DataError(
                f"output {spec.name!r}: its number of channels is open, so its padding is not known",
                "export the model with a fixed number of channels, or request a linear layout",
            )
        if nchw_sample(layout, array.shape[1:], channels) is None:
            raise DataError(
                f"output {spec.name!r}: an array of shape {array.shape} is not {layout}",
                "give the array as the engine wrote it",
            )
        array = unvectorise(array, layout, channels)
    if spec.shape and not _fits(spec, array):  # some models leave an output's rank open
        raise DataError(
            f"output {spec.name!r}: an array of shape {array.shape}, expected {spec.shape}",
            "give the array as the engine wrote it",
        )
    if tensor is None or tensor.scale is None:
        return array
    if array.dtype != numpy_dtype(tensor.dtype):
        raise DataError(
            f"output {spec.name!r}: holds {array.dtype} values, the engine's are {tensor.dtype}",
            "give the array as the engine wrote it",
        )
    values: Array = array.astype(np.float32) * np.float32(tensor.scale)
    return values


def on_host(array: object) -> Array:
    """An array of NumPy, or a copy on the host of one on the GPU (CuPy, Numba, PyTorch)."""
    if isinstance(array, np.ndarray):
        return array
    if hasattr(array, "detach"):
        tensor: Any = array.detach().cpu()
        array = tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor  # which NumPy lacks
    elif hasattr(array, "__cuda_array_interface__"):
        copy = getattr(array, "get", None) or getattr(array, "copy_to_host", None)
        if copy is None:
            raise DataError(f"{type(array).__name__}: an array on the GPU", "copy it to the host first")
        array = copy()
    try:
        found: Array = np.asarray(array)
    except (TypeError, ValueError) as error:
        raise DataError(f"{type(array).__name__}: no array: {error}", "give an array of numbers") from None
    return found
