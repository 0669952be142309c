"""Which inputs and outputs of a node can be of a 16-bit type, by ONNX's own operator schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
from onnx import TensorProto

from trtopt.onnxio.graph_walk import OWN_DOMAINS, graphs_of, opset_of
from trtopt.onnxio.prepare import inferred

FLOAT = TensorProto.FLOAT
LOW = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
"""ONNX's numbers of the 16-bit types, by precision."""
_SCHEMA_NAMES: dict[int, str] = {
    TensorProto.FLOAT16: "tensor(float16)",
    TensorProto.BFLOAT16: "tensor(bfloat16)",
}


@dataclass(frozen=True)
class Places:
    """By position: whether that input or output of a node becomes 16-bit when the node does."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]

    @property
    def any(self) -> bool:
        """Whether there is anything to change."""
        return any(self.inputs) or any(self.outputs)


@cache
def _schema(operator: str, opset: int) -> Any:
    return onnx.defs.get_schema(operator, opset, "") if onnx.defs.has(operator, opset, "") else None


@cache
def takes(operator: str, opset: int, low: int) -> bool | None:
    """Whether some type of the operator may be `low`; None for an operator that ONNX does not know."""
    schema = _schema(operator, opset)
    if schema is None:
        return None
    return any(_SCHEMA_NAMES[low] in item.allowed_type_strs for item in schema.type_constraints)


def places_of(node: onnx.NodeProto, opset: int, low: int, types: Mapping[str, int]) -> Places:
    """Where `node` can be of type `low` instead of FP32; `types` are those of the tensors.

    Where one tensor's type is not known, those that must be of the same type stay what they are.
    """
    schema = _schema(node.op_type, opset) if node.domain in OWN_DOMAINS else None
    if schema is None:
        return Places((False,) * len(node.input), (False,) * len(node.output))
    unknown = {parameter for name, parameter in _typed(node, schema) if name not in types}
    open_types = {
        item.type_param_str
        for item in schema.type_constraints
        if _SCHEMA_NAMES[low] in item.allowed_type_strs and item.type_param_str not in unknown
    }

    def of(names: Sequence[str], parameters: Sequence[Any]) -> tuple[bool, ...]:
        return tuple(
            types.get(name) == FLOAT and parameters[min(index, len(parameters) - 1)].type_str in open_types
            for index, name in enumerate(names)
        )

    return Places(of(node.input, schema.inputs), of(node.output, schema.outputs))


def types_of(model: onnx.ModelProto) -> dict[str, int]:
    """The element type of every tensor for which it is known, in subgraphs too.

    ONNX's inference finds most. Results of other domains' operators it does not know, but their readers
    may: all tensors of one type parameter of an operator have one type.

    Raises:
        InvalidModelError: the types contradict each other.
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
        schema = _schema(node.op_type, opset) if node.domain in OWN_DOMAINS else None
        if schema is None or all(name in types for name in (*node.input, *node.output) if name):
            continue
        pairs = list(_typed(node, schema))
        known = {parameter: types[name] for name, parameter in pairs if name in types}
        for name, parameter in pairs:
            if parameter in known:
                types.setdefault(name, known[parameter])
    return len(types) > before


def _typed(node: onnx.NodeProto, schema: Any) -> Iterator[tuple[str, str]]:
    """Each tensor of the node with its type parameter, or with its one type."""
    for names, parameters in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for index, name in enumerate(names):
            parameter = parameters[min(index, len(parameters) - 1)]
            if name and parameter.is_homogeneous:
                yield name, parameter.type_str
