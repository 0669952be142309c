"""Walking an ONNX model: subgraphs, functions, operators."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from trtopt.errors import InvalidModelError

if TYPE_CHECKING:
    import onnx
    from google.protobuf.message import Message

Part: TypeAlias = "onnx.GraphProto | onnx.FunctionProto"
_Part = TypeVar("_Part", bound="onnx.GraphProto | onnx.FunctionProto")

OWN_DOMAINS = ("", "ai.onnx")
TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
"""Attributes whose number is an element type."""
_NO_LENGTH = re.compile(r"\?|\*|-1|_|unk|unk__\d+|none|null|any|unknown|undefined|dynamic|", re.IGNORECASE)
"""Names that exporters and converters give every open axis, or count through."""
WEAK_TYPES = "trtopt.weak_types"
"""Metadata of this key names types that a weakly typed TensorRT may use where the graph has FP32."""


def names_length(name: str) -> bool:
    """Whether axes of this name have one length; those called `?` or alike may all differ."""
    return not _NO_LENGTH.fullmatch(name.strip())


def name_of(node: onnx.NodeProto) -> str:
    """The node's name; of one without the name that TensorRT's parser gives it."""
    return node.name or f"node_of_{next(iter(node.output), '')}"


def subgraphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that the node has as attributes, such as the branches of an If."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def graphs_of(part: _Part) -> Iterator[_Part | onnx.GraphProto]:
    """The graph (or function) and, depth first, every subgraph of its nodes."""
    yield part
    for node in part.node:
        for inner in subgraphs_of(node):
            yield from graphs_of(inner)


def parts_of(model: onnx.ModelProto) -> Iterator[Part]:
    """The model's graph, its functions, and every subgraph of either."""
    for part in (model.graph, *model.functions):
        yield from graphs_of(part)


def set_nodes(part: Part, nodes: Sequence[onnx.NodeProto]) -> None:
    """Give a part of a model these nodes, some of which may be its own."""
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del part.node[:]
    part.node.extend(copies)


def reads_of(node: onnx.NodeProto) -> set[str]:
    """Every name that the node reads, also from inside its subgraphs."""
    names = {name for name in node.input if name}
    for inner in subgraphs_of(node):
        made = {name for item in inner.node for name in item.output}
        made |= {item.name for item in (*inner.input, *inner.initializer)}
        names |= {name for item in inner.node for name in reads_of(item)} - made
        names |= {item.name for item in inner.output} - made
    return names


def check_texts(message: Message) -> None:
    """Every text of a model must be one: protobuf returns text that is no UTF-8 as bytes."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in (value,) if hasattr(value, "ListFields") else value:
                check_texts(inner)
        elif field.type == field.TYPE_STRING:
            for text in (value,) if isinstance(value, str | bytes) else value:
                if isinstance(text, bytes):
                    text.decode()


def check_types(model: onnx.ModelProto, path: Path) -> None:
    """Every element type that tensors are declared with or cast to must be one that ONNX has.

    ONNX's checker does not check it, and later readers of the model expect no other.
    """
    import onnx

    known = set(onnx.TensorProto.DataType.values())
    castable = known - {onnx.TensorProto.UNDEFINED}
    for part in parts_of(model):
        for value in (
            (*part.input, *part.output, *part.value_info) if isinstance(part, onnx.GraphProto) else ()
        ):
            _check_type(value.type.tensor_type.elem_type, known, f"tensor {value.name!r}", path)
        for node in part.node:
            for item in node.attribute:
                if item.name in TYPE_ATTRIBUTES and node.domain in OWN_DOMAINS and not item.ref_attr_name:
                    allowed = castable if node.op_type == "Cast" else known
                    _check_type(
                        item.i, allowed, f"{item.name!r} of node {node.name!r} ({node.op_type})", path
                    )


def _check_type(found: int, known: set[int], where: str, path: Path) -> None:
    if found not in known:
        raise InvalidModelError(
            f"{path}: {where} has the unknown element type {found}", "export the model again"
        )


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operator set that the model imports; 0 if it imports none."""
    return max((entry.version for entry in model.opset_import if entry.domain in OWN_DOMAINS), default=0)


def unknown_ops(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """(operator, node name) of each node of ONNX's own domain that the model's opset does not have."""
    import onnx

    opset = opset_of(model)
    local = {(function.domain, function.name) for function in model.functions}
    return [
        (node.op_type, node.name or "an unnamed node")
        for part in graphs_of(model.graph)
        for node in part.node
        if node.domain in OWN_DOMAINS
        and (node.domain, node.op_type) not in local
        and not onnx.defs.has(node.op_type, opset, "")
    ]
