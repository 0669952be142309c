"""The record of typed inputs and outputs in a file's metadata."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import onnx
from onnx import helper

from trtopt.records.typed_io import VECTORS, TypedTensor

_KEY = "trtopt.io"
"""Metadata of this key holds the typed tensors of a file, as JSON."""


def recorded_in(model: onnx.ModelProto) -> tuple[TypedTensor, ...]:
    """What a file says of its typed inputs and outputs, as far as its graph still has them so."""
    text = next((item.value for item in model.metadata_props if item.key == _KEY), "[]")
    try:
        found = msgspec.json.decode(text, type=tuple[TypedTensor, ...])
    except msgspec.DecodeError:
        return ()  # anyone may write metadata
    values = {item.name: item.type.tensor_type for item in (*model.graph.input, *model.graph.output)}
    return tuple(one for one in found if one.name in values and _is_so(one, values[one.name]))


def _is_so(tensor: TypedTensor, kind: onnx.TypeProto.Tensor) -> bool:
    known = kind.elem_type in helper.get_all_tensor_dtypes()
    return known and helper.tensor_dtype_to_np_dtype(kind.elem_type) == tensor.dtype


def record(model: onnx.ModelProto, tensors: Iterable[TypedTensor]) -> None:
    """Replace what the file says of them, in place: its graph is linear, whatever an engine is built with."""
    stated = [
        msgspec.structs.replace(one, layout="nchw") if one.layout in VECTORS else one for one in tensors
    ]
    kept = [item for item in model.metadata_props if item.key != _KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    model.metadata_props.add(key=_KEY, value=msgspec.json.encode(stated).decode())
