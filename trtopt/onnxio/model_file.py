"""ONNX files: read with the weights left on disk, written whole or not at all.

A model is a Protocol Buffers message: a run of fields, each a tag, a length and its bytes. Walking the
tags is enough to find where every weight lies in the file; the weights themselves are then never parsed,
only mapped, so that a model of any size costs little more memory than its graph.

Source: https://protobuf.dev/programming-guides/encoding and `onnx.proto` for the field numbers.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from trtopt.errors import InvalidModelError, OutputError, UsageError
from trtopt.files.atomic import flush_names, remove_if_abandoned, replace_together, write_beside, writing
from trtopt.files.bounded_reading import open_regular
from trtopt.files.formats import OtherFormat, format_of
from trtopt.files.outputs import Kind, check_output
from trtopt.onnxio.external_data import (
    INLINE_LIMIT,
    check_rest,
    check_values,
    entries_of,
    external_files,
    file_part,
    mapped,
    refers_to_file,
    size_in_bytes,
    take_in_inner,
    tensors_of,
)
from trtopt.onnxio.graph_walk import check_texts, check_types, name_nodes, reads_of, refill
from trtopt.onnxio.shape_inference import LARGE_BYTES, declare_outputs, is_heavy

_LENGTH_DELIMITED = 2


def varint(value: int) -> bytes:
    """`value` in base 128, least significant group first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def header(field: int, length: int) -> bytes:
    """The tag and length that open a length-delimited field."""
    return varint(field << 3 | _LENGTH_DELIMITED) + varint(length)


GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9  # ModelProto.graph, GraphProto.initializer, TensorProto.raw_data


def _read_varint(data: Any, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number runs past its message")


def fields(data: Any, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Each field of the message in `data[at:end]`: number, start of its tag, start and end of its content.

    A field that is no run of bytes has its number or fixed-size value as content.
    """
    while at < end:
        begin = at
        tag, at = _read_varint(data, at, end)
        kind = tag & 7
        start = at
        if kind == 0:
            _, at = _read_varint(data, at, end)
        elif kind == _LENGTH_DELIMITED:
            length, start = _read_varint(data, at, end)
            at = start + length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"unknown wire type {kind} at byte {begin}")
        if at > end or not tag >> 3:
            raise ValueError(f"the field at byte {begin} runs past its message")
        yield tag >> 3, begin, start, at


# How a model shows that trtopt wrote it and that nobody has edited it since: only such a one is replaced.
#
# A seal ends the file: an entry of the model's metadata with the hash of all that is before it. Fields may
# come in any order, so every reader sees one more entry; whoever saves the model again breaks the seal.


_KEY = "trtopt.seal"
_PIECE_BYTES = 1 << 20
WEIGHTS_END = b"\0weights written by trtopt\0"
"""What ends a file of weights; models refer to what is before it."""


def sealed(chunks: Iterable[Any]) -> Iterator[Any]:
    """A model's bytes, and its seal."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    yield _seal(digest.hexdigest())


def remove_seal(model: onnx.ModelProto) -> None:
    """Take a seal off a model that is written again."""
    kept = [entry for entry in model.metadata_props if entry.key != _KEY]
    refill(model.metadata_props, kept)


def is_sealed(path: Path) -> bool:
    """Whether trtopt wrote the model, and it is as it was written."""
    digest, seal = hashlib.sha256(), len(_seal(hashlib.sha256().hexdigest()))
    with open_regular(path) as file:
        left = os.fstat(file.fileno()).st_size - seal
        if left <= 0:
            return False
        file.seek(left)
        end = file.read(seal)
        if _KEY.encode() not in end:
            return False
        file.seek(0)
        while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
            digest.update(piece)
            left -= len(piece)
    return end == _seal(digest.hexdigest())


def _seal(text: str) -> bytes:
    entry = onnx.StringStringEntryProto(key=_KEY, value=text)
    return bytes(onnx.ModelProto(metadata_props=[entry]).SerializeToString())


MODEL = Kind("an ONNX file", is_sealed)


SPOOLED_BYTES = 1 << 20
"""New constants from this size on are put into files."""
_ALIGNMENT = 4096
_MOST_NAMES = 1000
_FIRST_BYTE = 0x08  # of ONNX files: the tag of the IR version, whatever the file is called
_own_files: dict[str, Path] = {}
"""Files of trtopt's own choice that weights lie in, by location: random, so that no model can name one."""
_NARROW = {onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.INT4}

_Stamp = tuple[Path, tuple[int, int, int, int]]
"""A file, and its device, number, size and time of change."""


@dataclass(frozen=True)
class ModelFile:
    """A model whose large weights refer to files in `folder`; `external`: so has the original.

    New large weights are put into files in `spool`, so that they too need no memory; without it they stay.
    `stamps` are the files that the model was read from, with what shows when another took their place.
    """

    proto: onnx.ModelProto
    folder: Path
    external: bool
    spool: Path | None = None
    stamps: tuple[_Stamp, ...] = ()

    @property
    def files(self) -> list[Path]:
        """The file that the model was read from, and those of its weights."""
        return [path for path, _ in self.stamps]


def _stamp(path: Path) -> _Stamp:
    stat = path.stat()
    return path, (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def check_unchanged(model: ModelFile) -> None:
    """Check that the model's files are still those that it was read from: its weights lie there."""
    for stamp in model.stamps:
        if not stamp[0].is_file() or _stamp(stamp[0]) != stamp:
            raise InvalidModelError(
                f"{stamp[0]} was changed while trtopt worked on it",
                "run it again when nothing else writes to that file",
            )


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether the tensor's data lies outside its message."""
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _own_location(file: Path) -> str:
    """A location that stands for `file` as long as this process lives."""
    location = secrets.token_hex(16)
    _own_files[location] = file
    return location


def _refer(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    tensor.data_location = onnx.TensorProto.EXTERNAL


def spooled(values: np.ndarray[Any, Any], name: str, spool: Path) -> onnx.TensorProto:
    """A weight whose values are written to a new file in `spool`."""
    return spooled_parts([values], values.dtype, values.shape, name, spool)


def spooled_parts(
    parts: Iterable[np.ndarray[Any, Any]], dtype: Any, shape: Sequence[int], name: str, spool: Path
) -> onnx.TensorProto:
    """As `spooled`, of values that come in parts, each written before the next is made."""
    with writing(spool):
        handle, path = tempfile.mkstemp(dir=spool)
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
            size = file.tell()
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    tensor = onnx.TensorProto(name=name, data_type=code, dims=shape)
    _refer(tensor, _own_location(Path(path)), 0, size)
    return tensor


def raw_bytes(tensor: onnx.TensorProto, folder: Path) -> Any:
    """The data of an external tensor, mapped read-only."""
    entries = entries_of(tensor)
    own = _own_files.get(entries.get("location", ""))
    if own is None:
        return mapped(file_part(tensor, folder), folder)
    length, offset = size_in_bytes(tensor), int(entries["offset"])
    try:
        return np.memmap(own, np.uint8, "r", offset, (length,)) if length else np.empty(0, np.uint8)
    except (OSError, ValueError):  # the user's model may be taken away while it is worked on
        raise InvalidModelError(
            f"weight {tensor.name!r} is no longer in {own}",
            "run it again when nothing else writes to that file",
        ) from None


def array_of(tensor: onnx.TensorProto, folder: Path) -> np.ndarray[Any, Any]:
    """The tensor's values, read-only; a large weight is a view of its file."""
    if not is_external(tensor):
        return onnx.numpy_helper.to_array(tensor)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.asarray(raw_bytes(tensor, folder)).view(dtype).reshape(tuple(tensor.dims))


def runnable(model: ModelFile) -> tuple[bytes, dict[str, np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    """The model's message, its large weights by name as arrays, mapped from their files, and the packed ones.

    Packed are those of types that NumPy and ONNX Runtime do not share (FP8, INT4): the message expects their
    bytes one after the other in PACKED_FILE. What nothing reads is left out: ONNX Runtime drops it before it
    looks for the array that is to stand for it.
    """
    proto = deepcopy(model.proto)
    read = {item.name for item in proto.graph.output}.union(*map(reads_of, proto.graph.node))
    left_out = {item.name for item in proto.graph.initializer} - read
    for field in (proto.graph.initializer, proto.graph.input):  # a default value's input goes with it
        kept = [item for item in field if item.name not in left_out]
        refill(field, kept)
    weights, packed, end = {}, [], 0
    for item in filter(is_external, proto.graph.initializer):
        if item.data_type not in _NARROW:
            weights[item.name] = array_of(item, model.folder)
            _refer(item, WEIGHTS_FILE, 0, size_in_bytes(item))
        else:
            packed.append(raw_bytes(item, model.folder))
            _refer(item, PACKED_FILE, end, size_in_bytes(item))
            end += size_in_bytes(item)
    name_nodes(proto.graph)  # ONNX Runtime refuses two nodes of one name
    return proto.SerializeToString(), weights, packed


def _without_weight(data: Any, start: int, end: int, location: str) -> bytes | None:
    """The initializer in `data[start:end]` with its large raw data replaced by a reference, if any."""
    raw = [(begin, at, stop) for field, begin, at, stop in fields(data, start, end) if field == RAW_DATA]
    if len(raw) != 1 or raw[0][2] - raw[0][1] < LARGE_BYTES:
        return None
    begin, at, stop = raw[0]
    tensor = onnx.TensorProto.FromString(data[start:begin] + data[stop:end])
    _refer(tensor, location, at, stop - at)
    return bytes(tensor.SerializeToString(deterministic=True))


def _skeleton(data: Any, location: str) -> bytes:
    """The model's message with every large initializer left in the file `location`."""
    out = bytearray()
    for field, begin, start, end in fields(data, 0, len(data)):
        if field != GRAPH:
            out += data[begin:end]
            continue
        graph = bytearray()
        for inner, at, content, stop in fields(data, start, end):
            light = _without_weight(data, content, stop, location) if inner == INITIALIZER else None
            graph += data[at:stop] if light is None else header(INITIALIZER, len(light)) + light
        out += header(GRAPH, len(graph)) + graph
    return bytes(out)


def read_message(path: Path, location: str | None = None) -> onnx.ModelProto:
    """The message in an ONNX file; with a `location`, large weights are not read, and refer to it."""
    try:
        if path.is_dir():
            raise InvalidModelError(f"{path}: is a folder", "give the path of an .onnx file")
        if not path.is_file():
            raise InvalidModelError(f"{path}: no such file", "give the path of an .onnx file")
        if not path.stat().st_size:
            raise InvalidModelError(f"{path}: the file is empty", "export the model again")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            content = data[:] if location is None else _skeleton(data, location)
        proto = onnx.ModelProto()
        proto.ParseFromString(content)  # onnx.load would guess the format from the file's name
        check_texts(proto)
    except OSError as error:
        raise InvalidModelError(
            f"{path}: cannot be read ({error.strerror})", "give the path of an .onnx file"
        ) from None
    except (ValueError, DecodeError) as error:
        other = format_of(path) or OtherFormat("")
        raise InvalidModelError(
            f"{path}: not an ONNX file, or cut short ({error})",
            other.remedy_for(path, "export the model again, or copy it again if it was copied"),
        ) from None
    return proto


def load(path: Path) -> ModelFile:
    """Read the ONNX file at `path`, its weights left where they are."""
    own = _own_location(path)
    proto = read_message(path, own)
    if not proto.graph.node and not proto.graph.output:
        raise InvalidModelError(
            f"{path}: holds no graph", "check that this is the ONNX file that the exporter wrote"
        )
    check_values(tensors_of(proto), path, own)
    check_types(proto, path)
    files = (path, *external_files(proto, path, but=own))
    external = False
    for tensor in proto.graph.initializer:
        if refers_to_file(tensor) and entries_of(tensor).get("location") != own:
            tensor.data_location = onnx.TensorProto.EXTERNAL
            external = True
        if is_external(tensor) and size_in_bytes(tensor) < LARGE_BYTES:
            tensor.raw_data = raw_bytes(tensor, path.parent).tobytes()
            del tensor.external_data[:]
            tensor.ClearField("data_location")
    take_in_inner(proto, path)
    declare_outputs(proto)
    return ModelFile(proto, path.parent, external, stamps=tuple(map(_stamp, files)))


def _data(tensor: onnx.TensorProto, folder: Path) -> Any:
    return raw_bytes(tensor, folder) if is_external(tensor) else tensor.raw_data


def _light(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """All but the data, and where it lies."""
    light = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    if tensor.HasField("doc_string"):
        light.doc_string = tensor.doc_string
    light.metadata_props.extend(tensor.metadata_props)
    return light


def _head(tensor: onnx.TensorProto) -> bytes:
    """What is before the weight's data in the model's file."""
    light, size = bytes(_light(tensor).SerializeToString(deterministic=True)), size_in_bytes(tensor)
    raw = header(RAW_DATA, size)
    return header(INITIALIZER, len(light) + len(raw) + size) + light + raw


def _inline(model: ModelFile, rest: onnx.ModelProto, heavy: list[onnx.TensorProto]) -> Iterator[Any]:
    """The file's bytes: the graph, then each weight straight from where it lies."""
    graph = rest.graph.SerializeToString(deterministic=True)
    rest.ClearField("graph")
    yield rest.SerializeToString(deterministic=True)
    yield header(GRAPH, len(graph) + _inline_size(heavy))
    yield graph
    for tensor in heavy:
        yield _head(tensor)
        yield _data(tensor, model.folder)


def _inline_size(heavy: list[onnx.TensorProto]) -> int:
    return sum(len(_head(tensor)) + size_in_bytes(tensor) for tensor in heavy)


def _outside(model: ModelFile, rest: onnx.ModelProto, heavy: list[onnx.TensorProto]) -> Iterator[Any]:
    """The weight file's bytes; `rest` is given a reference to each weight in it, without the file's name."""
    at = 0
    for tensor in heavy:
        size = size_in_bytes(tensor)
        light = _light(tensor)
        _refer(light, "", at, size)
        rest.graph.initializer.append(light)
        yield _data(tensor, model.folder)
        padding = -size % _ALIGNMENT
        yield bytes(padding)
        at += size + padding
    yield WEIGHTS_END


def check_changed_to(out: Path, source: Path) -> None:
    """Check, before any work, that what is made of the model `source` may be written to `out`."""
    if out.resolve() == source.resolve():
        raise UsageError("the output would replace the model itself", "choose another place with -o")
    check_output(out, MODEL)


def _refuse_own_files(model: ModelFile, path: Path) -> None:
    """Never write over a file that the model is read from."""
    locations = {entries_of(item)["location"] for item in model.proto.graph.initializer if is_external(item)}
    read = [_own_files.get(one, model.folder / one) for one in locations] + [file for file, _ in model.stamps]
    if path.exists() and any(file.exists() and file.samefile(path) for file in read):
        raise OutputError(f"{path} is a file of the model itself", "choose another place with -o")


def save(model: ModelFile, path: Path, beside: tuple[Path, bytes] | None = None) -> Path | None:
    """Write `model` to `path`, its weights next to it if they were kept so or exceed 2 GiB; their file if so.

    That file has a name that was free, `PATH.data` if possible: all changes in one step, when the model takes
    its name, and `beside`, another file and its content, with it. Then what trtopt wrote of the weights of an
    earlier `path` is removed, if no model needs it.
    """
    _refuse_own_files(model, path)
    rest = deepcopy(model.proto)
    remove_seal(rest)
    heavy = [tensor for tensor in model.proto.graph.initializer if is_heavy(tensor)]
    small = [tensor for tensor in model.proto.graph.initializer if not is_heavy(tensor)]
    refill(rest.graph.initializer, small)
    rest_size = rest.ByteSize()
    check_rest(rest_size, path)
    outside = bool(heavy) and (model.external or rest_size + _inline_size(heavy) > INLINE_LIMIT)
    weights: Path | None = None
    with writing(path), ExitStack() as made, ExitStack() as unfinished:
        if outside:
            values = write_beside(path.with_name(f"{path.name}.data"), _outside(model, rest, heavy), made)
            check_unchanged(model)
            _remove_unneeded_weights(path)
            weights = _take_free_name(values, path)
            unfinished.callback(weights.unlink, missing_ok=True)
            for tensor in filter(is_external, rest.graph.initializer):
                next(item for item in tensor.external_data if item.key == "location").value = weights.name
            whole: Iterator[Any] = iter([rest.SerializeToString(deterministic=True)])
        else:
            whole = _inline(model, rest, heavy)
        written = write_beside(path, sealed(whole), made)
        other = None if beside is None else (write_beside(beside[0], [beside[1]], made), beside[0])
        check_unchanged(model)
        flush_names(path.parent)  # the weights' name is on the disk before the model needs it
        if other is None:
            os.replace(written, path)
        else:
            replace_together([other, (written, path)])
        unfinished.pop_all()
        _remove_unneeded_weights(path)
    return weights


def _take_free_name(values: Path, path: Path) -> Path:
    """Give a complete file of weights its name: `PATH.data`, where that is taken `PATH.1.data`, and so on."""
    numbers = ("", *(f".{number}" for number in range(1, _MOST_NAMES)))
    for name in (path.with_name(f"{path.name}{number}.data") for number in numbers):
        try:
            os.link(values, name, follow_symlinks=False)
        except FileExistsError:
            continue
        except OSError:  # no links on this file system
            if os.path.lexists(name):
                continue
            os.replace(values, name)
        values.unlink(missing_ok=True)
        return name
    raise FileExistsError(errno.EEXIST, f"too many files named {path.name}.N.data")


def _remove_unneeded_weights(path: Path) -> None:
    """Remove weights that trtopt wrote for an earlier `path`, or an unfinished one, and no model names."""
    names = re.compile(rf"{re.escape(path.name)}(\.\d+)?\.data")
    for file in [file for file in path.parent.iterdir() if names.fullmatch(file.name)]:
        remove_if_abandoned(file, partial(_is_unneeded, file))


def _is_unneeded(weights: Path) -> bool:
    """Whether trtopt wrote the weights, and no model in their folder contains their name."""
    try:
        with open_regular(weights) as file:
            file.seek(-len(WEIGHTS_END), os.SEEK_END)
            if file.read() != WEIGHTS_END:
                return False
        others = (file for file in weights.parent.iterdir() if file.is_file() and file != weights)
        return not any(_may_name(file, weights.name.encode()) for file in others)
    except OSError:
        return False


def _may_name(file: Path, name: bytes) -> bool:
    """Whether the file may be a model and contains the name."""
    if not file.stat().st_size:
        return False
    with file.open("rb") as content, mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as data:
        is_model = file.suffix == ".onnx" or data[0] == _FIRST_BYTE
        return is_model and data.find(name) >= 0


WEIGHTS_FILE = "weights"
"""What a model names as the file of each weight that ONNX Runtime is given separately."""
PACKED_FILE = "packed"
"""The file of weights that ONNX Runtime reads itself."""
