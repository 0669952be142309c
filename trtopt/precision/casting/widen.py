"""A 16-bit model in FP32, to be calibrated and quantised as any other; what enters and leaves it stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx

from trtopt.onnxio.graph_walk import OWN_DOMAINS, TYPE_ATTRIBUTES, graphs_of
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.shape_inference import FLOAT, LOW
from trtopt.onnxio.weights import converted

_LOW = frozenset(LOW.values())
_SUFFIX = ":wide"


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
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    aside = _cast_ends(proto.graph)
    for part in graphs_of(proto.graph):
        for tensor in part.initializer:
            if tensor.data_type in _LOW:
                tensor.CopyFrom(converted(tensor, model, tensor.name, FLOAT))
        for node in part.node:
            _widen(node, model)
        _rename(part, aside, is_main=part is proto.graph)
        if part is not proto.graph:
            for value in (*part.input, *part.output):
                _widen_type(value.type)
        del part.value_info[:]
    _add_casts(proto.graph, aside)
    return replace(model, proto=proto)


def _names_low(node: onnx.NodeProto) -> bool:
    return node.domain in OWN_DOMAINS and any(
        (item.name in TYPE_ATTRIBUTES and item.i in _LOW) or item.t.data_type in _LOW
        for item in node.attribute
    )


def _widen(node: onnx.NodeProto, model: ModelFile) -> None:
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
    """The FP32 names of the inputs and outputs that are 16-bit; new ones, also if widened before."""
    given = {item.name for item in graph.initializer}
    taken = given.union(*({*node.input, *node.output} for part in graphs_of(graph) for node in part.node))
    suffix = _SUFFIX
    while any(name.endswith(suffix) for name in taken):
        suffix += "r"
    ends = (*(item for item in graph.input if item.name not in given), *graph.output)
    return {item.name: item.name + suffix for item in ends if item.type.tensor_type.elem_type in _LOW}


def _rename(part: onnx.GraphProto, aside: Mapping[str, str], *, is_main: bool) -> None:
    for node in part.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = aside.get(name, name)
    if is_main:
        for tensor in part.initializer:
            tensor.name = aside.get(tensor.name, tensor.name)
    else:
        for value in part.output:
            value.name = aside.get(value.name, value.name)


def _add_casts(graph: onnx.GraphProto, aside: Mapping[str, str]) -> None:
    casts = [
        onnx.helper.make_node("Cast", [item.name], [aside[item.name]], to=FLOAT)
        for item in graph.input
        if item.name in aside
    ]
    nodes = [*casts, *graph.node]
    given = {item.name for item in graph.input}
    for item in graph.output:
        if item.name in aside and item.name not in given:
            kind = item.type.tensor_type.elem_type
            nodes.append(onnx.helper.make_node("Cast", [aside[item.name]], [item.name], to=kind))
    del graph.node[:]
    graph.node.extend(nodes)
