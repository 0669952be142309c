"""FP16 and BF16 arithmetic emulated in FP32, every rounding in its place."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

import onnx
from onnx import TensorProto

from trtopt.onnxio.graph_walk import TYPE_ATTRIBUTES, Part, graphs_of, name_apart, subgraphs_of
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.shape_inference import FLOAT, LOW, types_of
from trtopt.onnxio.weights import converted

_LOW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def _has_low(types: Mapping[str, int]) -> bool:
    """Whether any tensor is 16-bit."""
    return any(kind in _LOW for kind in types.values())


def _emulated(model: onnx.ModelProto, types: Mapping[str, int]) -> onnx.ModelProto:
    """The model with FP32 operators and the same inputs, outputs, weights and roundings: what a GPU computes.

    GPUs add up 16-bit products in FP32 and round what they store. ONNX Runtime's CPU kernels lack most 16-bit
    operators: runs of FP16 nodes are computed in FP32 and rounded only where the run ends, which flatters,
    and BF16 does not run at all. `types` are those of its tensors; large weights stay where they are and are
    widened when it runs.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    parts = list(graphs_of(copy.graph))
    stem = _unused_stem({*types, *(name for part in parts for node in part.node for name in node.output)})
    for index, part in reversed(list(enumerate(parts))):  # inner graphs first: nodes around them are copied
        # Each graph widens for itself: inner graphs may read outer tensors.
        _widen(part, types, f"{stem}{index}:")
    return copy


def _unused_stem(names: Set[str]) -> str:
    """What no name begins with, so that names made from it are new in every graph and at every call."""
    stem = "wide"
    while any(name.startswith(stem) for name in names):
        stem += "r"
    return stem


def _widen(part: Part, types: Mapping[str, int], prefix: str) -> None:
    nodes: list[onnx.NodeProto] = []
    wide: dict[str, str] = {}
    for old in part.node:
        node = onnx.NodeProto()
        node.CopyFrom(old)
        if any(True for _ in subgraphs_of(node)):  # what enters and leaves subgraphs is as they declare it
            nodes.append(node)
            continue
        for index, name in enumerate(old.input):
            if types.get(name) in _LOW:
                if name not in wide:
                    wide[name] = prefix + name
                    nodes.append(_cast(name, wide[name], TensorProto.FLOAT))
                node.input[index] = wide[name]
        nodes.append(node)
        if _names_its_type(node):
            continue
        for index, name in enumerate(old.output):
            if types.get(name) in _LOW:
                node.output[index] = f"{prefix}raw:{name}"
                nodes.append(_cast(node.output[index], name, types[name]))
    del part.node[:]
    part.node.extend(nodes)
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
    if not _has_low(types_of(model.proto)):
        return model
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
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
