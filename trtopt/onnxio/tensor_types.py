"""The element type of every tensor of a model, as far as it can be known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import onnx
from onnx import TensorProto

from trtopt.onnxio.graph_walk import OWN_DOMAINS, graphs_of, opset_of
from trtopt.onnxio.prepare import inferred

FLOAT = TensorProto.FLOAT
LOW = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
"""ONNX's numbers of the 16-bit types, by precision."""


@cache
def schema_of(operator: str, opset: int) -> Any:
    """ONNX's schema of an operator in an opset; None for an operator that ONNX does not know."""
    return onnx.defs.get_schema(operator, opset, "") if onnx.defs.has(operator, opset, "") else None


def types_of(model: onnx.ModelProto) -> dict[str, int]:
    """The element type of every tensor for which it is known, in subgraphs too.

    ONNX's inference finds most. Results of other domains' operators it does not know, but their readers
    may: all tensors of one type parameter of an operator have one type.
    """
    found: dict[str, int] = {item.name: item.data_type for item in model.graph.initializer}
    for part in graphs_of(inferred(model).graph):
        for item in getattr(part, "initializer", ()):
            found[item.name] = item.data_type
        for value in (*part.input, *part.value_info, *part.output):
            if isinstance(value, onnx.ValueInfoProto) and value.type.HasField("tensor_type"):
                found[value.name] = value.type.tensor_type.elem_type
    nodes = [node for part in graphs_of(model.graph) for node in part.node]
    while _add_neighbours_types(nodes, opset_of(model), found):
        nodes.reverse()  # a type may travel either way
    return found


def _add_neighbours_types(nodes: Sequence[onnx.NodeProto], opset: int, types: dict[str, int]) -> bool:
    """Add types that follow from those of other tensors of the same node; whether there were any."""
    before = len(types)
    for node in nodes:
        schema = schema_of(node.op_type, opset) if node.domain in OWN_DOMAINS else None
        if schema is None or all(name in types for name in (*node.input, *node.output) if name):
            continue
        pairs = list(with_parameters(node, schema))
        known = {parameter: types[name] for name, parameter in pairs if name in types}
        for name, parameter in pairs:
            if parameter in known:
                types.setdefault(name, known[parameter])
    return len(types) > before


def with_parameters(node: onnx.NodeProto, schema: Any) -> Iterator[tuple[str, str]]:
    """Each tensor of the node with its type parameter, or with its one type."""
    for names, parameters in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for index, name in enumerate(names):
            parameter = parameters[min(index, len(parameters) - 1)]
            if name and parameter.is_homogeneous:
                yield name, parameter.type_str
