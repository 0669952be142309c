"""A model without its large weights: what ONNX's checker and inference can take, and what they say of it."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

import onnx

from trtopt.errors import InvalidModelError
from trtopt.onnxio.external_data import refers_to_file
from trtopt.onnxio.graph_walk import Part, graphs_of
from trtopt.onnxio.shape_inference import infer_shapes

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
    heavy = [item for item in model.graph.initializer if _is_heavy(item)]
    copy = _copied_without(model, "graph")
    copy.graph.CopyFrom(_copied_without(model.graph, "initializer"))
    copy.graph.initializer.extend(item for item in model.graph.initializer if not _is_heavy(item))
    declared = {item.name for item in copy.graph.input}
    copy.graph.input.extend(
        onnx.helper.make_tensor_value_info(item.name, item.data_type, list(item.dims))
        for item in heavy
        if item.name not in declared
    )
    return copy


def _is_heavy(tensor: onnx.TensorProto) -> bool:
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
    with suppress(onnx.shape_inference.InferenceError, ValueError):  # those who need shapes say so
        found = infer_shapes(skeleton(model))
        named = {
            axis.dim_param
            for graph in graphs_of(model.graph)
            for item in (*graph.input, *graph.output, *graph.value_info)
            for axis in item.type.tensor_type.shape.dim
        }
        for own, other in zip(model.graph.output, found.graph.output, strict=True):
            if not _is_declared(own) and other.type.HasField("tensor_type"):
                own.type.CopyFrom(other.type)
                for axis in own.type.tensor_type.shape.dim:
                    if axis.dim_param not in named:  # a name of inference's own
                        axis.ClearField("dim_param")


def _is_declared(value: onnx.ValueInfoProto) -> bool:
    kind = value.type.WhichOneof("value")
    tensor = value.type.tensor_type
    return kind not in (None, "tensor_type") or bool(tensor.elem_type and tensor.HasField("shape"))
