"""A model's weights: whether their values fit their shapes, and what is read from files next to it.

The places of weights in a model are untrusted. They are checked here before anything reads such files, trtopt
or ONNX, ONNX Runtime and TensorRT: only regular files in the model's own folder.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message

from trtopt.errors import InvalidModelError
from trtopt.onnxio.element_types import bits_of

_MAX_DIGITS = 19
_MAX_NAME = 255
_WITHOUT_TENSORS = ("ValueInfoProto", "TypeProto", "StringStringEntryProto")  # most of a model's messages
_KEYS = ("location", "offset", "length", "checksum", "basepath")
_OF_ONNXRUNTIME = "prepacked"  # ONNX Runtime's notes on the same file begin so
_MEMORY = "*/"  # ONNX Runtime takes the offset of such a location for an address in memory
INLINE_LIMIT = 2**31 - 2**20
"""Bytes of one file: Protocol Buffers ends at 2 GiB, and a file ends with a seal."""
_COPY = "work on a copy that has no links: cp -rL FOLDER COPY"
_WIDEST, _BYTE = 128, 8


@dataclass(frozen=True)
class FilePart:
    """The place of `weight` according to the model: `size` bytes at `offset` of the file `location`."""

    weight: str
    location: str
    offset: int
    size: int

    @property
    def end(self) -> int:
        """How long the file must be."""
        return self.offset + self.size


def external_files(model: onnx.ModelProto, path: Path, *, but: str | None = None) -> list[Path]:
    """The files that hold the model's external weights, sorted; without what is at the location `but`."""
    needed: dict[str, FilePart] = {}
    for tensor in tensors_of(model):
        if refers_to_file(tensor) and (part := file_part(tensor, path)).location != but:
            needed[part.location] = max(needed.get(part.location, part), part, key=lambda one: one.end)
    for part in needed.values():
        os.close(_opened(part, path.parent))
    return [path.parent / location for location in sorted(needed)]


def weights_of(path: Path) -> list[Path]:
    """The files that a model's weights lie in, wherever and whatever they are; none of any other file."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError:
        return []
    entries = [item for tensor in tensors_of(model) for item in tensor.external_data]
    return [path.parent / item.value for item in entries if item.key == "location"]


def refers_to_file(tensor: onnx.TensorProto) -> bool:
    """Whether any reader may look for the tensor's data in a file."""
    return bool(tensor.external_data) or tensor.data_location == onnx.TensorProto.EXTERNAL


def take_in(tensors: Iterable[onnx.TensorProto], path: Path) -> None:
    """Read the data of tensors of the model `path` that refer to files, into their messages."""
    for tensor in tensors:
        if refers_to_file(tensor):
            tensor.raw_data = mapped(file_part(tensor, path), path.parent).tobytes()
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")


def take_in_inner(model: onnx.ModelProto, path: Path) -> None:
    """Read what is in files but no initializer of the graph: in attributes, subgraphs, functions, sparse."""
    inner = [*tensors_of(model, "graph"), *tensors_of(model.graph, "initializer")]
    outside = [tensor for tensor in inner if refers_to_file(tensor)]
    check_rest(sum(file_part(tensor, path).size for tensor in outside), path)
    take_in(outside, path)


def check_rest(size: int, path: Path) -> None:
    """What cannot be written beside a model must fit in its file."""
    if size > INLINE_LIMIT:
        raise InvalidModelError(
            f"{path}: has more than 2 GiB that are no initializers of its graph",
            "export the model again, with its weights as initializers",
        )


def mapped(part: FilePart, folder: Path) -> np.ndarray[Any, Any]:
    """The bytes of a weight of a model in `folder`, mapped read-only from its file."""
    with os.fdopen(_opened(part, folder), "rb") as file:
        if not part.size:
            return np.empty(0, np.uint8)
        values = np.memmap(file, np.uint8, "r", part.offset, (part.size,))
        values.filename = os.path.abspath(folder / part.location)  # an opened descriptor has no name
        return values


def entries_of(tensor: onnx.TensorProto) -> dict[str, str]:
    """What the tensor says of its place in a file."""
    return {entry.key: entry.value for entry in tensor.external_data}


def check_values(tensors: Iterable[onnx.TensorProto], path: Path, own: str) -> None:
    """Each must have as many values as its shape needs; those in files next to the model are skipped.

    `own` is the location of those that were left in the model's own file. ONNX's checker does not count them.
    """
    for tensor in tensors:
        place = entries_of(tensor) if tensor.data_location == onnx.TensorProto.EXTERNAL else None
        if place is not None and place.get("location") != own:
            continue
        fault = _fault(tensor, None if place is None else int(place["length"]))
        if fault is not None:
            raise InvalidModelError(
                f"{path}: weight {tensor.name!r} of shape {list(tensor.dims)[:8]} {fault}",
                "export the model again, or copy it again if it was copied",
            )


def _fault(tensor: onnx.TensorProto, left: int | None) -> str | None:
    """What is wrong with a tensor, of which so many bytes were left in the file."""
    try:
        field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        return f"has the element type {tensor.data_type}, which onnx {onnx.__version__} does not know"
    if min(tensor.dims, default=0) < 0:
        return "has an axis of negative length"
    if left is not None or tensor.HasField("raw_data"):
        needed, there, unit = size_in_bytes(tensor), len(tensor.raw_data) if left is None else left, "bytes"
    else:
        count = math.prod(tensor.dims)
        parts = 2 if dtype.kind == "c" else 1
        needed = -(-count * min(bits_of(dtype.name), _BYTE) // _BYTE) * parts
        there, unit = len(getattr(tensor, field)), "values"
    return None if there == needed else f"has {there} {unit}, {needed} are needed"


def tensors_of(message: Message, but: str | None = None) -> Iterator[onnx.TensorProto]:
    """Every tensor anywhere in a message, in whatever field; the message's own field `but` is left out."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        is_walked = field.type == field.TYPE_MESSAGE and field.message_type.name not in _WITHOUT_TENSORS
        if is_walked and field.name != but:
            for inner in (value,) if hasattr(value, "ListFields") else value:
                yield from tensors_of(inner)


def least_bytes(model: onnx.ModelProto, types: Iterable[str]) -> int:
    """What the weights of an engine made of the model take at least.

    Each is counted in the narrowest of the graph's `types` if its own is wider: what is wide before a Q or a
    cast may be narrow in the engine.
    """
    narrowest = min(map(bits_of, {*types} - {"bool"}), default=_WIDEST)
    total = 0
    for tensor in tensors_of(model):
        try:
            own = bits_of(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).name)
        except KeyError:
            continue
        total += math.prod(tensor.dims) * min(own, narrowest) // 8
    return total


def file_part(tensor: onnx.TensorProto, where: Path) -> FilePart:
    """Where a tensor that refers to a file lies; `where` the model is, for messages."""
    weight, again = f"{where}: weight {tensor.name!r}", "export the model again"
    keys = [item.key for item in tensor.external_data]
    odd = [key for key in keys if key not in _KEYS and not key.startswith(_OF_ONNXRUNTIME)]
    if odd or len(keys) != len(set(keys)):
        how = f"by {odd[0][:_MAX_NAME]!r}, which ONNX does not have" if odd else "twice"
        raise InvalidModelError(f"{weight}: its place in a file is described {how}", again)
    if (
        tensor.data_type == onnx.TensorProto.STRING
        or tensor.data_type not in onnx.helper.get_all_tensor_dtypes()
    ):
        raise InvalidModelError(
            f"{weight} in a file has the element type {tensor.data_type}, which files do not hold", again
        )
    if min(tensor.dims, default=0) < 0:
        raise InvalidModelError(f"{weight} has an axis of negative length", again)
    entry = entries_of(tensor)
    offset = _byte_count(weight, entry.get("offset")) or 0
    length = _byte_count(weight, entry.get("length"))
    shape_bytes = size_in_bytes(tensor)
    if length is not None and length < shape_bytes:
        raise InvalidModelError(
            f"{weight} has {length} bytes in a file, its shape needs {shape_bytes}", again
        )
    return FilePart(weight, entry.get("location", ""), offset, shape_bytes)


def _byte_count(weight: str, text: str | None) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise InvalidModelError(
            f"{weight} has {text[:_MAX_DIGITS]!r} for an offset or length", "export the model again"
        )
    return int(text)


def size_in_bytes(tensor: onnx.TensorProto) -> int:
    """What the data of a tensor takes in a file; types of few bits are packed."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    count: int = math.prod(tensor.dims)
    bits = bits_of(dtype.name)
    return -(-count * bits // _BYTE) if bits < _BYTE else count * int(dtype.itemsize)


def _opened(part: FilePart, folder: Path) -> int:
    """The file of a weight, opened: a regular one of the model's folder, and long enough."""
    parts = PurePosixPath(part.location)
    shown = repr(part.location[:_MAX_NAME])
    what = f"{part.weight}: its weights file {shown}"
    outside = not part.location or parts.is_absolute() or ".." in parts.parts
    if outside or part.location.startswith(_MEMORY):
        raise InvalidModelError(
            f"{part.weight} refers to {shown}, outside the model's own folder",
            "save the model again with its weights next to it",
        )
    try:
        file = (folder / part.location).resolve(strict=True)
        if not file.is_relative_to(folder.resolve()):
            raise InvalidModelError(f"{what} is a link out of the model's own folder", _COPY)
        _check_regular(file.stat(), what)  # opening a pipe or a device may wait, or do something
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError, RuntimeError):  # not there, no name for a file, links in a circle
        raise InvalidModelError(
            f"{what} is missing", f"put {parts.name[:_MAX_NAME]!r} next to the model"
        ) from None
    try:
        if Path(f"/proc/self/fd/{handle}").readlink() != file:
            raise InvalidModelError(
                f"{what} was moved while it was opened", "run it again when nothing moves it"
            )
        _check_open(os.fstat(handle), what, part.end)
    except InvalidModelError:
        os.close(handle)
        raise
    return handle


def _check_regular(status: os.stat_result, what: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidModelError(f"{what} is not a regular file", "put the file itself next to the model")


def _check_open(status: os.stat_result, what: str, end: int) -> None:
    _check_regular(status, what)
    if status.st_nlink > 1:  # what has a name in another folder may be no part of the model
        raise InvalidModelError(f"{what} is a hard link: it has {status.st_nlink} names", _COPY)
    if status.st_size < end:
        raise InvalidModelError(
            f"{what} has {status.st_size} bytes, {end} are needed",
            "copy the weights file again: it was cut short",
        )
