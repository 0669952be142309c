"""A model's weights: whether their values fit their shapes, and whether files beside it hold the others."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trtopt.errors import InvalidModelError
from trtopt.onnxgraph import parts_of

if TYPE_CHECKING:
    import onnx

_MAX_DIGITS = 19
_MAX_NAME = 255
_WIDEST = 128
_PER_BYTE = {"int4": 2, "uint4": 2, "float4_e2m1fn": 2, "int2": 4, "uint2": 4}
"""How many values share a byte, where several do."""


def external_files(model: onnx.ModelProto, path: Path) -> list[Path]:
    """The files that hold the model's external weights, sorted.

    Raises:
        InvalidModelError: one is missing, too short, lies outside the model's own folder, or is described in
            a way that makes no sense.
    """
    needed: dict[str, int] = {}
    for tensor in tensors_of(model):
        if tensor.external_data:
            location, end = _described(tensor, path)
            needed[location] = max(needed.get(location, 0), end)
    for location, end in needed.items():
        _check(path, location, end)
    return [path.parent / location for location in sorted(needed)]


def check_values(tensors: Iterable[onnx.TensorProto], path: Path) -> None:
    """Each must have as many values as its shape says; those in files beside the model are not looked at.

    ONNX's own checker does not count them.

    Raises:
        InvalidModelError: too few, too many, of no known type, or an axis of negative length.
    """
    import onnx

    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            continue
        fault = _fault(tensor)
        if fault is not None:
            raise InvalidModelError(
                f"{path}: weight {tensor.name!r} of shape {list(tensor.dims)[:8]} {fault}",
                "export the model again, or copy it again if it was copied",
            )


def _fault(tensor: onnx.TensorProto) -> str | None:
    import onnx

    try:
        field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        return f"has the element type {tensor.data_type}, which onnx {onnx.__version__} does not know"
    if min(tensor.dims, default=0) < 0:
        return "has an axis of negative length"
    if tensor.HasField("raw_data"):
        needed, there, unit = _shape_bytes(tensor), len(tensor.raw_data), "bytes"
    else:
        count = math.prod(tensor.dims)
        parts = 2 if dtype.kind == "c" else 1
        needed = -(-count // _PER_BYTE.get(dtype.name, 1)) * parts
        there, unit = len(getattr(tensor, field)), "values"
    return None if there == needed else f"has {there} {unit}, {needed} are needed"


def tensors_of(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every constant of the model: initializers and attributes, in subgraphs and functions too."""
    for part in parts_of(model):
        yield from getattr(part, "initializer", ())
        for sparse in getattr(part, "sparse_initializer", ()):
            yield from (sparse.values, sparse.indices)
        for node in part.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors


def least_bytes(model: onnx.ModelProto, types: Iterable[str]) -> int:
    """What the weights of an engine made of the model take at least.

    Each is counted in the narrowest of the graph's `types` if its own is wider: what is wide before a Q or a
    cast may be narrow in the engine.
    """
    import onnx

    narrowest = min(map(_bits, {*types} - {"bool"}), default=_WIDEST)
    total = 0
    for tensor in tensors_of(model):
        try:
            own = _bits(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).name)
        except KeyError:
            continue
        total += math.prod(tensor.dims) * min(own, narrowest) // 8
    return total


def _bits(dtype: str) -> int:
    """The first number in a type's name: `float8_e4m3fn` has 8; names without one are of bytes."""
    number = re.search(r"\d+", dtype)
    return int(number.group()) if number else 8


def _described(tensor: onnx.TensorProto, path: Path) -> tuple[str, int]:
    """(file, end of the weight in it)."""
    entry = {item.key: item.value for item in tensor.external_data}
    offset = _byte_count(path, tensor.name, entry.get("offset")) or 0
    length = _byte_count(path, tensor.name, entry.get("length"))
    shape_bytes = _shape_bytes(tensor)
    if length is not None and length < shape_bytes:
        raise InvalidModelError(
            f"{path}: weight {tensor.name!r} has {length} bytes in a file, its shape needs {shape_bytes}",
            "export the model again",
        )
    return entry.get("location", ""), offset + shape_bytes


def _byte_count(path: Path, tensor: str, text: str | None) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise InvalidModelError(
            f"{path}: weight {tensor!r} has {text[:_MAX_DIGITS]!r} for an offset or length",
            "export the model again",
        )
    return int(text)


def _shape_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes of a dense tensor; types of few bits are packed."""
    import onnx

    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        return 0
    count: int = math.prod(tensor.dims)
    per_byte = _PER_BYTE.get(dtype.name)
    return -(-count // per_byte) if per_byte else count * int(dtype.itemsize)


def check_no_link(path: Path, location: str, what: str) -> None:
    """What the model `path` has at `location`, called `what`, must lie in the model's folder itself.

    Raises:
        InvalidModelError: links lead out of it.
    """
    if not (path.parent / location).resolve().is_relative_to(path.parent.resolve()):
        raise InvalidModelError(
            f"{path}: {what} {location[:_MAX_NAME]!r} is a link out of the model's own folder",
            "put the file itself beside the model",
        )


def _check(path: Path, location: str, end: int) -> None:
    parts = PurePosixPath(location)
    shown = repr(location[:_MAX_NAME])
    if not location or parts.is_absolute() or ".." in parts.parts:
        raise InvalidModelError(
            f"{path}: its weights are said to be in {shown}, outside the model's own folder",
            "save the model again with its weights beside it",
        )
    file = path.parent / location
    if "\0" in location or len(location) > _MAX_NAME or not file.is_file():
        raise InvalidModelError(
            f"{path}: its weights file {shown} is missing",
            f"put {parts.name[:_MAX_NAME]!r} beside {path.name}",
        )
    check_no_link(path, location, "its weights file")
    if file.stat().st_size < end:
        raise InvalidModelError(
            f"{path}: its weights file {shown} has {file.stat().st_size} bytes, {end} are needed",
            "copy the weights file again: it was cut short",
        )
