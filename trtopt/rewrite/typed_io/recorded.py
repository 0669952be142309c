"""The record of typed inputs and outputs in a file's metadata."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import onnx
from onnx import helper

from trtopt.records.tensors import LINEAR, VECTORS, TypedTensor

_KEY = "trtopt.io"
"""Metadata of this key holds the typed tensors of a file, as JSON."""


def recorded_in(model: onnx.ModelProto) -> tuple[TypedTensor, ...]:
    """What a file says of its typed inputs and outputs, as far as its graph still has them so.

    A vectorised format is one of an engine that was built of the file: its graph is linear.
    """
    text = next((item.value for item in model.metadata_props if item.key == _KEY), "[]")
    try:
        found = msgspec.json.decode(text, type=tuple[TypedTensor, ...])
    except msgspec.DecodeError:
        return ()  # anyone may write metadata
    known = helper.get_all_tensor_dtypes()
    dtypes = {
        (role, item.name): str(helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type))
        for role, items in (("input", model.graph.input), ("output", model.graph.output))
        for item in items
        if item.type.tensor_type.elem_type in known
    }
    linear = (msgspec.structs.replace(one, layout="nchw") if one.layout in VECTORS else one for one in found)
    return tuple(one for one in linear if dtypes.get((one.role, one.name)) == one.dtype and _is_sound(one))


def _is_sound(tensor: TypedTensor) -> bool:
    numbers = (1.0 if tensor.scale is None else tensor.scale, *tensor.std)
    return (
        tensor.layout in LINEAR
        and all(0 < number < math.inf for number in numbers)
        and len(tensor.mean) == len(tensor.std)
    )


def record(model: onnx.ModelProto, tensors: Iterable[TypedTensor]) -> None:
    """Replace what the file says of them, in place."""
    kept = [item for item in model.metadata_props if item.key != _KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    model.metadata_props.add(key=_KEY, value=msgspec.json.encode(tuple(tensors)).decode())
