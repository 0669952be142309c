"""The arithmetic of symmetric quantisation: scales and quantised values of INT8, FP8 and INT4."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.errors import ModelError
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.precision.placement.placement_plan import Precision

LARGEST: dict[Precision, float] = {"int8": 127.0, "fp8": 448.0, "int4": 7.0}
"""The magnitude that amax is mapped to. INT8 reaches −128 and INT4 −8, but both signs reach amax."""
RANGE: dict[Precision, tuple[float, float]] = {"int8": (-128, 127), "fp8": (-448, 448), "int4": (-8, 7)}
ELEMENT: dict[Precision, int] = {"int8": 3, "fp8": 17, "int4": 22}
"""ONNX's numbers of the element types: INT8, FLOAT8E4M3FN, INT4."""
SMALLEST_HALF = 2.0**-24
"""FP16's smallest number above 0."""
_IDLE_AMAX = 1.0
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""Of a block's largest |w|, what its scale may reach."""


def scale_of(amax: NDArray[Any] | float, precision: Precision) -> NDArray[np.float32]:
    """amax / largest in FP32, always above 0: what is all zero gets the scale of amax 1."""
    wide = np.asarray(amax, np.float64)
    scale = np.where(wide > 0, wide, _IDLE_AMAX) / LARGEST[precision]
    return np.asarray(np.maximum(scale.astype(np.float32), np.finfo(np.float32).tiny))


def held_by_half(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """The next larger scales that FP16 holds exactly: Q and DQ mean the same before and after casting.

    The smallest is 2⁻²⁴: a scale below it becomes that, which clips nothing and coarsens values under 1e-5.
    What exceeds FP16 stays; casting keeps such a pair in FP32.
    """
    with np.errstate(over="ignore"):
        half = scale.astype(np.float16)
        up = np.where(half.astype(np.float32) < scale, np.nextafter(half, np.float16(np.inf)), half)
    wide = up.astype(np.float32)
    return np.asarray(np.where(np.isfinite(wide), wide, scale).astype(np.float32))


def check_weight(weight: NDArray[Any], name: str, node: str) -> None:
    """Refuse a weight that has no scale because not all of it is finite."""
    finite = np.isfinite(weight)
    if finite.all():
        return
    place = [int(index) for index in np.unravel_index(int(np.argmin(finite)), weight.shape)]
    raise ModelError(
        f"weight {name!r} of node {node!r} is not finite: {weight[tuple(place)]} at {place}",
        "export the model again from an intact checkpoint",
    )


def weight_scale(
    weight: NDArray[Any],
    axis: int | None,
    precision: Precision,
    block: int = 0,
    importance: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """The scale of each slice along `axis`, of the whole (None), or of each block of rows along axis 0.

    Slices reach their largest |w|. Blocks, of which 15 levels are all there is, reach what errs least; the
    squared errors of a block's rows count by `importance` [block], or alike.
    """
    if block:
        blocks = weight.reshape(-1, block, *weight.shape[1:])
        found = [_least_error(rows.astype(np.float32), precision, importance) for rows in blocks]
        return scale_of(np.stack(found), precision)
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis % weight.ndim)
    return scale_of(np.maximum(weight.max(axis=others), -weight.min(axis=others)), precision)


def _least_error(
    rows: NDArray[np.float32], precision: Precision, importance: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """The amax of each column with the least squared error of rounding and clipping its rows."""
    low, high = RANGE[precision]
    largest = np.abs(rows).max(axis=0)
    counts = np.ones(len(rows), np.float32) if importance is None else importance
    best, least = largest, np.full(largest.shape, np.inf, np.float32)
    for share in _SHARES:
        amax = largest * np.float32(share)
        steps = scale_of(amax, precision)
        error = counts @ np.square(np.clip(np.rint(rows / steps), low, high) * steps - rows)
        best, least = np.where(error < least, amax, best), np.minimum(error, least)
    return np.asarray(best)


def quantised(
    weight: NDArray[Any], scale: NDArray[np.float32], axis: int | None, precision: Precision, block: int = 0
) -> NDArray[Any]:
    """The weight in its narrow type: rounded half to even and clipped, as QuantizeLinear does."""
    steps = np.repeat(scale, block, axis=0) if block else _along(scale, axis, weight.ndim)
    low, high = RANGE[precision]
    ratio = np.clip(weight.astype(np.float32) / steps, low, high)
    narrow = numpy_dtype("float8_e4m3fn") if precision == "fp8" else np.dtype(np.int8)
    return np.asarray((ratio if precision == "fp8" else np.rint(ratio)).astype(narrow))


def dequantised(narrow: NDArray[Any], scale: NDArray[np.float32], axis: int | None) -> NDArray[np.float32]:
    """What DequantizeLinear makes of a weight whose zero is 0, in FP32."""
    return np.asarray(narrow.astype(np.float32) * _along(scale, axis, narrow.ndim), np.float32)


def _along(scale: NDArray[np.float32], axis: int | None, rank: int) -> NDArray[np.float32]:
    """A scale for each slice along an axis, or one for all, so that it broadcasts."""
    if axis is None:
        return scale
    return scale.reshape([-1 if index == axis % rank else 1 for index in range(rank)])


def packed(values: NDArray[Any], precision: Precision) -> bytes:
    """The values as ONNX stores them: a byte each, INT4 in pairs with the first in the low half."""
    if precision != "int4":
        return values.tobytes()
    halves = np.append(values.ravel(), np.zeros(values.size % 2, np.int8)).view(np.uint8) & 0xF
    return bytes((halves[0::2] | (halves[1::2] << 4)).tobytes())


def packed_bytes(count: int, precision: Precision) -> int:
    """What so many values take, `packed`."""
    return (count + 1) // 2 if precision == "int4" else count
