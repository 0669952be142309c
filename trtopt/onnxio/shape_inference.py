"""ONNX's shape inference, with its data propagation kept from what it gets wrong.

Data propagation follows the values of shapes through nine operators: lists of numbers, names and unknowns.
A Slice takes an unknown bound for 0; Gather, Slice, Add, Sub and Mul take every tensor for a list, also one
of two axes; a Cast keeps what its type cannot hold. A rank that comes of this is wrong. Behind such a node a
barrier is put for as long as inference runs: an Abs, which has the node's shape and hands no values on.

Axes of one name have one length. What is called `?` or alike is not named; an input's axis without a name
gets one of its own, under which it is followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from trtopt.onnxio.graph_walk import OWN_DOMAINS, graphs_of, names_length, parts_of, set_nodes

_MATH = ("Add", "Sub", "Mul")
_FIRST = ("Gather", "Slice", "Cast", "Squeeze", "Unsqueeze")
"""Operators that hand on values of their first input."""
_WHOLE = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)


def infer_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `model` with all types and shapes that ONNX's inference gets right."""
    barred: dict[str, str] = {}
    model = _with_named_axes(model)
    found = onnx.shape_inference.infer_shapes(model, data_prop=True)
    while doubtful := set(_doubtful(found)) - barred.keys():
        barred |= _unused_names(model, doubtful, len(barred))
        found = onnx.shape_inference.infer_shapes(_with_barriers(model, barred), data_prop=True)
    return _shapes_of(found, model, set(barred.values())) if barred else found


def forget_placeholders(graph: onnx.GraphProto) -> None:
    """Take the names that say nothing off all axes, in place: their lengths may differ."""
    for inner in graphs_of(graph):
        for item in (*inner.input, *inner.output, *inner.value_info):
            for axis in item.type.tensor_type.shape.dim:
                if axis.HasField("dim_param") and not names_length(axis.dim_param):
                    axis.ClearField("dim_param")


def _with_named_axes(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    forget_placeholders(copy.graph)
    for item in copy.graph.input:
        for place, axis in enumerate(item.type.tensor_type.shape.dim):
            if axis.WhichOneof("value") is None:
                axis.dim_param = f"axis {place} of {item.name}"
    return copy


def _doubtful(model: onnx.ModelProto) -> Iterator[str]:
    """The outputs of nodes whose values data propagation may get wrong.

    The shapes in front of the first such node are right, so that finding them one after another finds all.
    """
    seen = _Seen(model)
    for part in parts_of(model):
        constant = {item.name for item in getattr(part, "initializer", ())}
        constant |= {node.output[0] for node in part.node if node.op_type == "Constant"}
        for node in part.node:
            if node.domain in OWN_DOMAINS and len(node.output) == 1 and seen.is_doubtful(node, constant):
                yield node.output[0]


class _Seen:
    """What data propagation has a list for, by name: what it made itself, and whatever has one known axis."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._types: dict[str, onnx.TypeProto.Tensor | None] = {}
        self._made: set[str] = set()
        for graph in graphs_of(model.graph):
            for value in (*graph.input, *graph.value_info, *graph.output):
                declared = value.type.tensor_type
                other = self._types.setdefault(value.name, declared)
                if other is not None and other != declared:
                    self._types[value.name] = None  # sibling graphs share the name
            for tensor in graph.initializer:
                self._types[tensor.name] = onnx.helper.make_tensor_type_proto(
                    tensor.data_type, list(tensor.dims)
                ).tensor_type
        for part in parts_of(model):
            self._learn(part.node)

    def _learn(self, nodes: Iterable[onnx.NodeProto]) -> None:
        for node in nodes:
            first = node.op_type in _FIRST and self._has_list(node.input[0])
            every = node.op_type in (*_MATH, "Concat") and all(map(self._has_list, node.input))
            if node.op_type in ("Shape", "Size") or first or every:
                self._made |= set(node.output)

    def _rank(self, name: str) -> int | None:
        known = self._types.get(name)
        return len(known.shape.dim) if known is not None and known.HasField("shape") else None

    def _element(self, name: str) -> int:
        known = self._types.get(name)
        return 0 if known is None else known.elem_type

    def _has_list(self, name: str) -> bool:
        return name in self._made or self._rank(name) in (0, 1)

    def is_doubtful(self, node: onnx.NodeProto, constant: set[str]) -> bool:
        """Whether the values that are handed on may be wrong; `constant` are the names that are known."""
        if node.output[0] not in self._made:
            return False
        if node.op_type == "Cast":
            return node.input[0] in self._made and self._element(node.input[0]) not in _WHOLE
        if self._element(node.input[0]) not in (0, *_WHOLE):
            return False
        if node.op_type in _MATH:
            return self._rank(node.output[0]) not in (0, 1)
        if node.op_type == "Slice" and not set(node.input[1:3]) <= constant:
            return True
        return node.op_type in ("Gather", "Slice") and self._rank(node.input[0]) != 1


def _unused_names(model: onnx.ModelProto, outputs: Iterable[str], first: int) -> dict[str, str]:
    """A name for what each of these nodes makes itself, which nothing in the model has."""
    taken = {name for part in parts_of(model) for node in part.node for name in (*node.input, *node.output)}
    prefix = "barred"
    while any(name.startswith(prefix) for name in taken):
        prefix += "_"
    return {name: f"{prefix}{count}" for count, name in enumerate(sorted(outputs), first)}


def _with_barriers(model: onnx.ModelProto, barred: dict[str, str]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for part in parts_of(copy):
        nodes = []
        for node in part.node:
            nodes.append(node)
            if len(node.output) == 1 and node.output[0] in barred:
                name = node.output[0]
                node.output[0] = barred[name]
                nodes.append(onnx.helper.make_node("Abs", [barred[name]], [name]))
        if len(nodes) > len(part.node):
            set_nodes(part, nodes)
    return copy


def _shapes_of(found: onnx.ModelProto, model: onnx.ModelProto, barred: set[str]) -> onnx.ModelProto:
    """`model` with the types and shapes of `found`, less those of the barriers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for own, inferred in zip(graphs_of(copy.graph), graphs_of(found.graph), strict=True):
        for values, others in ((own.input, inferred.input), (own.output, inferred.output)):
            for value, other in zip(values, others, strict=True):
                value.CopyFrom(other)
        del own.value_info[:]
        own.value_info.extend(item for item in inferred.value_info if item.name not in barred)
    return copy
