"""Writing a graph with its weights inside, one weight at a time.

Serialising a whole model holds its weights twice more in memory. An ONNX file is a protobuf message, though,
and a message is its fields one after the other: the graph is written without weights, each weight follows as
a field, its bytes copied from the file that the exporter left them in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtopt.onnxio.protobuf import header

if TYPE_CHECKING:
    import onnx

_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class _Weight:
    """A weight as it will be written: the message without its bytes, and where these are."""

    message: bytes
    file: Path | None
    offset: int
    length: int

    @property
    def head(self) -> bytes:
        """All but the external bytes."""
        return self.message if self.file is None else self.message + header(_raw_data_field(), self.length)

    @property
    def size(self) -> int:
        """Bytes of the whole message."""
        return len(self.head) + self.length


def write_whole(model: onnx.ModelProto, folder: Path, path: Path) -> None:
    """Write `model` to `path`, its external weights, which lie in `folder`, moved inside."""
    import onnx

    shell = onnx.ModelProto()
    shell.CopyFrom(model)
    del shell.graph.initializer[:]
    graph = shell.graph.SerializeToString(deterministic=True)
    shell.ClearField("graph")
    weights = [_weight(tensor, folder) for tensor in model.graph.initializer]
    field = _number(onnx.GraphProto, "initializer")
    prefixes = [header(field, weight.size) for weight in weights]
    total = len(graph) + sum(
        len(prefix) + weight.size for prefix, weight in zip(prefixes, weights, strict=True)
    )
    with path.open("wb") as file:
        file.write(shell.SerializeToString(deterministic=True))
        file.write(header(_number(onnx.ModelProto, "graph"), total) + graph)
        for prefix, weight in zip(prefixes, weights, strict=True):
            file.write(prefix + weight.head)
            for chunk in _chunks(weight):
                file.write(chunk)


def _weight(tensor: onnx.TensorProto, folder: Path) -> _Weight:
    import onnx

    if not tensor.external_data:
        return _Weight(tensor.SerializeToString(deterministic=True), None, 0, 0)
    entry = {item.key: item.value for item in tensor.external_data}
    bare = onnx.TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
    return _Weight(
        bare.SerializeToString(deterministic=True),
        folder / entry["location"],
        int(entry.get("offset", 0)),
        int(entry["length"]),
    )


def _chunks(weight: _Weight) -> Iterator[bytes]:
    if weight.file is None:
        return
    with weight.file.open("rb") as file:
        file.seek(weight.offset)
        left = weight.length
        while left:
            chunk = file.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise OSError(f"{weight.file.name} ends too early")
            left -= len(chunk)
            yield chunk


def _number(message: Any, field: str) -> int:
    return int(message.DESCRIPTOR.fields_by_name[field].number)


def _raw_data_field() -> int:
    import onnx

    return _number(onnx.TensorProto, "raw_data")
