"""Types and shapes: ONNX's inference on a model without its large weights, kept from what it gets wrong.

Data propagation follows the values of shapes through nine operators: lists of numbers, names and unknowns.
A Slice takes an unknown bound for 0; Gather, Slice, Add, Sub and Mul take every tensor for a list, also one
of two axes; a Cast keeps what its type cannot hold. A rank that comes of this is wrong. Behind such a node a
barrier is put for as long as inference runs: an Abs, which has the node's shape and hands no values on.

Axes of one name have one length. What is called `?` or alike is not named; an input's axis without a name
gets one of its own, under which it is followed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeVar

import onnx
from onnx import TensorProto

from trtopt.errors import InvalidModelError
from trtopt.onnxio.external_data import refers_to_file
from trtopt.onnxio.graph_walk import (
    OWN_DOMAINS,
    Part,
    graphs_of,
    names_length,
    opset_of,
    parts_of,
    refill,
    take_name,
)

_MATH = ("Add", "Sub", "Mul")
_WHOLE = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)


def infer_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `model` with all types and shapes that ONNX's inference gets right."""
    barred: dict[str, str] = {}
    model = _with_named_axes(model)
    found = onnx.shape_inference.infer_shapes(model, data_prop=True)
    taken = {name for part in parts_of(model) for node in part.node for name in (*node.input, *node.output)}
    while doubtful := set(_doubtful(found)) - barred.keys():
        barred |= {name: take_name(f"{name}:barred", taken) for name in sorted(doubtful)}
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
    copy = deepcopy(model)
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
    types = tensor_types(model)
    for part in parts_of(model):
        constant = {item.name for item in getattr(part, "initializer", ())}
        constant |= {node.output[0] for node in part.node if node.op_type == "Constant"}
        for node in part.node:
            if node.domain in OWN_DOMAINS and len(node.output) == 1 and _is_doubtful(node, types, constant):
                yield node.output[0]


def tensor_types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto.Tensor]:
    """The types and shapes of tensors by name, but for those of a name that sibling graphs share."""
    found: dict[str, onnx.TypeProto.Tensor] = {}
    for graph in graphs_of(model.graph):
        values = (*graph.input, *graph.value_info, *graph.output)
        for value in (value for value in values if value.type.HasField("tensor_type")):
            if found.setdefault(value.name, value.type.tensor_type) != value.type.tensor_type:
                found[value.name] = onnx.TypeProto.Tensor()
        for tensor in graph.initializer:
            declared = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
            found[tensor.name] = declared.tensor_type
    return found


def _is_doubtful(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto.Tensor], constant: set[str]
) -> bool:
    """Whether the values that are handed on may be wrong; `constant` are the names that are known."""

    def rank(name: str) -> int | None:
        known = types.get(name)
        return len(known.shape.dim) if known is not None and known.HasField("shape") else None

    source = types.get(node.input[0]) if node.input else None
    element = 0 if source is None else source.elem_type
    if node.op_type == "Cast":
        return element not in _WHOLE and any(item.i in _WHOLE for item in node.attribute)
    if element not in (0, *_WHOLE):
        return False
    if node.op_type in _MATH:
        return rank(node.output[0]) not in (0, 1)
    if node.op_type == "Slice" and not set(node.input[1:3]) <= constant:
        return True
    return node.op_type in ("Gather", "Slice") and rank(node.input[0]) != 1


def _with_barriers(model: onnx.ModelProto, barred: dict[str, str]) -> onnx.ModelProto:
    copy = deepcopy(model)
    for part in parts_of(copy):
        nodes = []
        for node in part.node:
            nodes.append(node)
            if len(node.output) == 1 and node.output[0] in barred:
                name = node.output[0]
                node.output[0] = barred[name]
                nodes.append(onnx.helper.make_node("Abs", [barred[name]], [name]))
        if len(nodes) > len(part.node):
            refill(part.node, nodes)
    return copy


def _shapes_of(found: onnx.ModelProto, model: onnx.ModelProto, barred: set[str]) -> onnx.ModelProto:
    """`model` with the types and shapes of `found`, less those of the barriers."""
    copy = deepcopy(model)
    for own, other in zip(graphs_of(copy.graph), graphs_of(found.graph), strict=True):
        for values, others in ((own.input, other.input), (own.output, other.output)):
            for value, its in zip(values, others, strict=True):
                value.CopyFrom(its)
        refill(own.value_info, (item for item in other.value_info if item.name not in barred))
    return copy


_Message = TypeVar("_Message", onnx.ModelProto, onnx.GraphProto)

LARGE_BYTES = 4096
"""Weights from this size on stay in their file; smaller ones take part in folding."""
EXPORT_AGAIN = "export the model again; `python -m onnx.checker` shows ONNX's own messages"
_DECLARE = (
    "declare it where the graph was cut, open axes by name: with onnx-graphsurgeon "
    "tensor.dtype = numpy.float32; tensor.shape = ['batch', 3, 224, 224]"
)


def skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without large weights, each declared as an input."""
    heavy = [item for item in model.graph.initializer if is_heavy(item)]
    copy = _copied_without(model, "graph")
    copy.graph.CopyFrom(_copied_without(model.graph, "initializer"))
    copy.graph.initializer.extend(item for item in model.graph.initializer if not is_heavy(item))
    declared = {item.name for item in copy.graph.input}
    copy.graph.input.extend(
        onnx.helper.make_tensor_value_info(item.name, item.data_type, list(item.dims))
        for item in heavy
        if item.name not in declared
    )
    return copy


def is_heavy(tensor: onnx.TensorProto) -> bool:
    """Whether the weight stays in a file, its own or the model's."""
    return refers_to_file(tensor) or len(tensor.raw_data) >= LARGE_BYTES


def _copied_without(message: _Message, left_out: str) -> _Message:
    """A copy of a message but for one field, which may be too large to copy."""
    copy = type(message)()
    for field, value in message.ListFields():
        if field.name == left_out:
            continue
        if isinstance(value, str | bytes | int):
            setattr(copy, field.name, value)
        else:
            (getattr(copy, field.name)).MergeFrom(value)
    return copy


def check(model: onnx.ModelProto) -> None:
    """Run ONNX's own checker on the graph.

    It wants the shape of every output, which TensorRT and ONNX Runtime do without.
    """
    light = skeleton(model)
    for role, values in (("input", light.graph.input), ("output", light.graph.output)):
        for item in values:
            kind, tensor = item.type.WhichOneof("value"), item.type.tensor_type
            if kind is None or (kind == "tensor_type" and not tensor.elem_type):
                raise InvalidModelError(f"{role} {item.name!r} has no type", _DECLARE)
            if role == "input" and kind == "tensor_type" and not tensor.HasField("shape"):
                raise InvalidModelError(
                    f"input {item.name!r} has no shape: how many axes it has is not known", _DECLARE
                )
            if kind == "tensor_type":
                tensor.shape.SetInParent()
    try:
        onnx.checker.check_model(light)
    except (onnx.checker.ValidationError, UnicodeDecodeError) as error:  # its message need not be text
        first = str(error).strip().splitlines()[0]
        raise InvalidModelError(f"not a valid ONNX graph: {first}", EXPORT_AGAIN) from None


_MOST_NODES = 1_000_000
_Key = tuple[str, str, str]


def check_functions(model: onnx.ModelProto) -> None:
    """Check a model's functions: none may call itself, and the graph may not become too large by them."""
    calls = {_key(item.domain, item.name, item): _called(item) for item in model.functions}
    sizes: dict[_Key, int] = {}
    try:
        for key in TopologicalSorter(calls).static_order():
            sizes[key] = sum(sizes.get(each, 1) * n for each, n in calls[key].items()) if key in calls else 1
    except CycleError as error:
        _, name, _ = error.args[1][0]
        raise InvalidModelError(f"function {name!r} calls itself", "export the model again") from None
    total = sum(sizes.get(key, 1) * count for key, count in _called(model.graph).items())
    if total > _MOST_NODES:
        raise InvalidModelError(
            f"its functions call one another until the graph has {total} nodes, above {_MOST_NODES}",
            "export the model again, without functions",
        )


def _called(part: Part) -> Counter[_Key]:
    """The operators and functions of a graph's nodes, subgraphs included, and how often each occurs."""
    return Counter(_key(node.domain, node.op_type, node) for graph in graphs_of(part) for node in graph.node)


def _key(domain: str, name: str, item: object) -> _Key:
    return domain, name, getattr(item, "overload", "")  # ONNX before 1.16 has no overloads


def declare_outputs(model: onnx.ModelProto) -> None:
    """Give outputs without a type or a shape what inference finds, in place: a cut graph lacks both."""
    if all(map(_is_declared, model.graph.output)):
        return
    check_functions(model)
    with suppress(InvalidModelError):  # those who need shapes say so
        found = declared_values(model)
        for own in model.graph.output:
            if not _is_declared(own) and found[own.name].type.HasField("tensor_type"):
                own.type.CopyFrom(found[own.name].type)


def declared_values(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """The tensors of the main graph, weights too, with the types and shapes that inference finds.

    Axes have the names alone that the model gives them.
    """
    found = inferred(model).graph
    named = {
        axis.dim_param
        for graph in graphs_of(model.graph)
        for item in (*graph.input, *graph.output, *graph.value_info)
        for axis in item.type.tensor_type.shape.dim
    }
    values = {item.name: item for item in (*found.output, *found.value_info, *found.input)}  # one may be both
    values |= {
        item.name: onnx.helper.make_tensor_value_info(item.name, item.data_type, list(item.dims))
        for item in model.graph.initializer
    }
    for value in values.values():
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param not in named:  # a name of inference's own
                axis.ClearField("dim_param")
    return values


def _is_declared(value: onnx.ValueInfoProto) -> bool:
    kind = value.type.WhichOneof("value")
    tensor = value.type.tensor_type
    return kind not in (None, "tensor_type") or bool(tensor.elem_type and tensor.HasField("shape"))


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model's skeleton with all types and shapes that ONNX's inference finds."""
    try:
        return infer_shapes(skeleton(model))
    except onnx.shape_inference.InferenceError as error:
        raise InvalidModelError(f"the model's shapes contradict each other: {error}", EXPORT_AGAIN) from None
    except ValueError as error:  # such as an output of a type that there is not
        raise InvalidModelError(f"the model's shapes cannot be inferred: {error}", EXPORT_AGAIN) from None


def skeleton_at(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """The model's skeleton with its inputs at `shapes`, and no shape but these."""
    fixed = skeleton(model)
    fix_inputs(fixed.graph, shapes)
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    return fixed


def fix_inputs(graph: onnx.GraphProto, shapes: Mapping[str, Sequence[int | None]]) -> None:
    """Give inputs these lengths, in place; None leaves one open. Shapes inside are to be inferred again."""
    for value in graph.input:
        axes, wanted = value.type.tensor_type.shape.dim, shapes.get(value.name)
        if wanted is not None and len(axes) == len(wanted):
            for axis, size in zip(axes, wanted, strict=True):
                if size is not None:
                    axis.dim_value = size
    for part in graphs_of(graph):
        del part.value_info[:]


FLOAT = TensorProto.FLOAT
LOW = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
"""ONNX's numbers of the 16-bit types, by precision."""
FLOATS = (FLOAT, *LOW.values())
"""The types that TensorRT computes in; NumPy and ONNX Runtime have FP64 besides."""


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
        found |= {item.name: item.data_type for item in part.initializer}
        for value in (*part.input, *part.value_info, *part.output):
            if value.type.HasField("tensor_type"):
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
