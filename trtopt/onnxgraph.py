"""Walking an ONNX model: subgraphs, functions, operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import onnx
    from google.protobuf.message import Message

    Part: TypeAlias = onnx.GraphProto | onnx.FunctionProto

OWN_DOMAINS = ("", "ai.onnx")
WEAK_TYPES = "trtopt.weak_types"
"""Metadata of this key names types that a weakly typed TensorRT may use where the graph says FP32."""


def graphs_of(part: Part) -> Iterator[Part]:
    """The graph (or function) and, depth first, every subgraph of its nodes."""
    yield part
    for node in part.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_of(attribute.g)
            for child in attribute.graphs:
                yield from graphs_of(child)


def parts_of(model: onnx.ModelProto) -> Iterator[Part]:
    """The model's graph, its functions, and every subgraph of either."""
    for part in (model.graph, *model.functions):
        yield from graphs_of(part)


def reads_of(node: onnx.NodeProto) -> set[str]:
    """Every name that the node reads, also from inside its subgraphs."""
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            made = {name for item in inner.node for name in item.output}
            made |= {item.name for item in (*inner.input, *inner.initializer)}
            names |= {name for item in inner.node for name in reads_of(item)} - made
            names |= {item.name for item in inner.output} - made
    return names


def check_texts(message: Message) -> None:
    """Every text of a model must be one: protobuf hands out what is no UTF-8 as bytes.

    Raises:
        UnicodeDecodeError: the first that is none.
    """
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in (value,) if hasattr(value, "ListFields") else value:
                check_texts(inner)
        elif field.type == field.TYPE_STRING:
            for text in (value,) if isinstance(value, str | bytes) else value:
                if isinstance(text, bytes):
                    text.decode()


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operator set that the model asks for; 0 if it asks for none."""
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
