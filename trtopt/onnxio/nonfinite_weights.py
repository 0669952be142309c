"""Weights that hold NaN or infinity, read a stretch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.onnxio.graph_walk import graphs_of
from trtopt.onnxio.model_file import ModelFile, array_of

_FLOATING = {
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.DOUBLE,
}
_STRETCH = 1 << 21  # values at a time, so that scratch memory stays small next to the weights


def weight_alarms(model: ModelFile) -> tuple[str, ...]:
    """What to say of floating-point weights with NaN or infinity in them, wherever they lie."""
    odd = [
        item.name
        for part in graphs_of(model.proto.graph)
        for item in (
            *part.initializer,
            *(a.t for node in part.node for a in node.attribute if a.HasField("t")),
        )
        if item.data_type in _FLOATING and not _is_sound(array_of(item, model.folder))
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
    for start in range(0, flat.size, _STRETCH):
        yield flat[start : start + _STRETCH]
