"""16-bit models in FP32: their arithmetic emulated with every rounding in its place, or left out of it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

import onnx
from onnx import TensorProto

from trtopt.onnxio.graph_walk import (
    OWN_DOMAINS,
    TYPE_ATTRIBUTES,
    graphs_of,
    name_apart,
    names_in,
    real_inputs,
    refill,
    rename_uses,
    subgraphs_of,
    take_name,
)
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.shape_inference import FLOAT, LOW, types_of
from trtopt.onnxio.weights import converted

_LOW = frozenset(LOW.values())


def _emulated(model: onnx.ModelProto, types: Mapping[str, int]) -> onnx.ModelProto:
    """The model with FP32 operators and the same inputs, outputs, weights and roundings: what a GPU computes.

    GPUs add up 16-bit products in FP32 and round what they store. ONNX Runtime's CPU kernels lack most 16-bit
    operators: runs of FP16 nodes are computed in FP32 and rounded only where the run ends, which flatters,
    and BF16 does not run at all. `types` are those of its tensors; large weights stay where they are and are
    widened when it runs.
    """
    copy = deepcopy(model)
    taken = {*types, *names_in(copy.graph)}
    for part in reversed(list(graphs_of(copy.graph))):  # inner graphs first: nodes around them are copied
        _widen(part, types, taken)  # each widens for itself: inner graphs may read outer tensors
    return copy


def _widen(part: onnx.GraphProto, types: Mapping[str, int], taken: set[str]) -> None:
    nodes: list[onnx.NodeProto] = []
    wide: dict[str, str] = {}
    for old in part.node:
        node = deepcopy(old)
        if any(subgraphs_of(node)):  # what enters and leaves subgraphs is as they declare it
            nodes.append(node)
            continue
        for index, name in enumerate(old.input):
            if types.get(name) in _LOW:
                if name not in wide:
                    wide[name] = take_name(f"wide:{name}", taken)
                    nodes.append(_cast(name, wide[name], TensorProto.FLOAT))
                node.input[index] = wide[name]
        nodes.append(node)
        if _names_its_type(node):
            continue
        for index, name in enumerate(old.output):
            if types.get(name) in _LOW:
                node.output[index] = take_name(f"raw:{name}", taken)
                nodes.append(_cast(node.output[index], name, types[name]))
    refill(part.node, nodes)
    del part.value_info[:]


def _names_its_type(node: onnx.NodeProto) -> bool:
    """Whether an attribute names the node's output type: FP32 inputs then do not change it."""
    return node.op_type == "ConstantOfShape" or any(item.name in TYPE_ATTRIBUTES for item in node.attribute)


def _cast(source: str, target: str, to: int) -> onnx.NodeProto:
    return onnx.helper.make_node("Cast", [source], [target], to=to)


def in_fp32(model: ModelFile) -> ModelFile:
    """The model, its 16-bit arithmetic emulated if it has any; weights are widened now if there is a spool.

    Otherwise they are widened whenever the model runs. What it computes is the same to the bit.
    """
    if _LOW.isdisjoint(types_of(model.proto).values()):
        return model
    proto = deepcopy(model.proto)
    name_apart(proto.graph)
    types = types_of(proto)
    outputs = {item.name for item in proto.graph.output}
    if model.spool is not None:
        for tensor in proto.graph.initializer:
            if types[tensor.name] not in LOW.values() or tensor.name in outputs:
                continue
            tensor.CopyFrom(converted(tensor, model, tensor.name, FLOAT))
            types[tensor.name] = FLOAT
            # Constants are multiplied by in another order of sums; what is among the inputs is none.
            proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, FLOAT, tensor.dims))
    return replace(model, proto=_emulated(proto, types))


def is_low(model: onnx.ModelProto) -> bool:
    """Whether a weight, an input or a Cast of the model, subgraphs included, is FP16 or BF16."""
    return any(
        any(tensor.data_type in _LOW for tensor in part.initializer)
        or any(value.type.tensor_type.elem_type in _LOW for value in part.input)
        or any(_names_low(node) for node in part.node)
        for part in graphs_of(model.graph)
    )


def widened(model: ModelFile) -> ModelFile:
    """The model with every FP16 and BF16 tensor in FP32, and casts at inputs and outputs that are 16-bit.

    What it computes is the same but for the roundings that are left out. Large weights go to the spool.
    """
    proto = deepcopy(model.proto)
    aside = _cast_ends(proto.graph)
    for part in graphs_of(proto.graph):
        for tensor in part.initializer:
            if tensor.data_type in _LOW:
                tensor.CopyFrom(converted(tensor, model, tensor.name, FLOAT))
        for node in part.node:
            _widen_node(node, model)
        if part is not proto.graph:
            for value in (*part.input, *part.output):
                _widen_type(value.type)
        del part.value_info[:]
    rename_uses(proto.graph, aside, makers=True)
    _add_casts(proto.graph, aside)
    return replace(model, proto=proto)


def _names_low(node: onnx.NodeProto) -> bool:
    return node.domain in OWN_DOMAINS and any(
        (item.name in TYPE_ATTRIBUTES and item.i in _LOW) or item.t.data_type in _LOW
        for item in node.attribute
    )


def _widen_node(node: onnx.NodeProto, model: ModelFile) -> None:
    for item in node.attribute if node.domain in OWN_DOMAINS else ():
        if item.name in TYPE_ATTRIBUTES and item.i in _LOW:
            item.i = FLOAT
        elif item.t.data_type in _LOW:
            item.t.CopyFrom(converted(item.t, model, item.t.name, FLOAT))


def _widen_type(declared: onnx.TypeProto) -> None:
    if declared.HasField("sequence_type"):
        _widen_type(declared.sequence_type.elem_type)
    elif declared.HasField("optional_type"):
        _widen_type(declared.optional_type.elem_type)
    elif declared.tensor_type.elem_type in _LOW:
        declared.tensor_type.elem_type = FLOAT


def _cast_ends(graph: onnx.GraphProto) -> dict[str, str]:
    """The FP32 names of the inputs and outputs that are 16-bit."""
    taken, ends = names_in(graph), (*real_inputs(graph), *graph.output)
    low = {item.name for item in ends if item.type.tensor_type.elem_type in _LOW}
    return {name: take_name(f"{name}:wide", taken) for name in sorted(low)}


def _add_casts(graph: onnx.GraphProto, aside: Mapping[str, str]) -> None:
    casts = [_cast(item.name, aside[item.name], FLOAT) for item in graph.input if item.name in aside]
    nodes = [*casts, *graph.node]
    given = {item.name for item in graph.input}
    for item in graph.output:
        if item.name in aside and item.name not in given:
            nodes.append(_cast(aside[item.name], item.name, item.type.tensor_type.elem_type))
    refill(graph.node, nodes)
