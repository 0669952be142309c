"""What Q and DQ make of weights, computed once: ONNX Runtime, unoptimised, does it at every run.

For a sample of ViT-B/16 quantising 86 million weights took 2.3 s on two cores, dequantising them 0.5, and all
of its products 0.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.onnxio.graph_walk import reads_of
from trtopt.onnxio.model_file import ModelFile, array_of
from trtopt.onnxio.weights import constant_of_parts, runs_of_rows
from trtopt.precision.placement.placement_plan import Precision
from trtopt.precision.placement.view import attribute, is_op
from trtopt.precision.qdq.quantised_values import dequantised, quantised
from trtopt.precision.qdq.write import drop_unread

_PRECISIONS: Mapping[int, Precision] = {
    onnx.TensorProto.INT8: "int8",
    onnx.TensorProto.FLOAT8E4M3FN: "fp8",
}
_MOST_HELD_BYTES = 32 << 20
"""Of weights as floats, without a spool, in messages that are copied again and again."""

_USUAL = {"block_size": 0, "output_dtype": 0, "precision": 0, "saturate": 1}
"""Default values of attributes."""


@dataclass(frozen=True)
class _Weight:
    """A constant on its way through Q and DQ, or through DQ alone."""

    source: onnx.TensorProto
    quantize: onnx.NodeProto | None
    dequantize: onnx.NodeProto


def with_weights_dequantised(model: ModelFile) -> ModelFile:
    """A copy in which constants stand for Q and DQ of weights, under the names of the DQs' outputs.

    INT8 and FP8 with zero points of 0, in the main graph, if they do not take too much. What the model
    computes is the same, but for the order of sums.
    """
    constants = _constants(model)
    weights = _weights(model, constants)
    taken = sum(4 * int(np.prod(one.source.dims, dtype=np.int64)) for one in weights.values())
    if not weights or (model.spool is None and taken > _MOST_HELD_BYTES):
        return model
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for name, weight in weights.items():
        proto.graph.initializer.append(_dequantised(name, weight, model, constants))
    nodes = [node for node in proto.graph.node if node.output[0] not in weights]
    read = {item.name for item in proto.graph.output}.union(*map(reads_of, nodes))
    unread = {one.quantize.output[0] for one in weights.values() if one.quantize is not None} - read
    del proto.graph.node[:]
    proto.graph.node.extend(node for node in nodes if node.output[0] not in unread)
    drop_unread(proto)
    return replace(model, proto=proto)


def _constants(model: ModelFile) -> dict[str, onnx.TensorProto]:
    """Those that no input replaces."""
    given = {item.name for item in model.proto.graph.input}
    return {item.name: item for item in model.proto.graph.initializer if item.name not in given}


def _weights(model: ModelFile, constants: Mapping[str, onnx.TensorProto]) -> dict[str, _Weight]:
    """By the name of what comes out of the DQ."""
    graph = model.proto.graph
    outputs, read = {item.name for item in graph.output}, set[str]().union(*map(reads_of, graph.node))
    quantizes = {
        node.output[0]: node
        for node in graph.node
        if is_op(node, "QuantizeLinear") and _is_plain(node, model, constants) and node.input[0] in constants
    }
    found = {}
    for node in graph.node:
        if not is_op(node, "DequantizeLinear") or node.output[0] not in read - outputs:
            continue
        quantize = quantizes.get(node.input[0])
        source = constants.get(node.input[0] if quantize is None else quantize.input[0])
        if source is not None and _is_plain(node, model, constants):
            found[node.output[0]] = _Weight(source, quantize, node)
    return found


def _is_plain(node: onnx.NodeProto, model: ModelFile, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether its scale is constant, its zero point 0 of INT8 or FP8, and each attribute the default."""
    if len(node.input) < 3 or not constants.keys() >= set(node.input[1:3]):
        return False
    zero = constants[node.input[2]]
    has_attributes = any(item.i != _USUAL.get(item.name, item.i) for item in node.attribute)
    return not has_attributes and zero.data_type in _PRECISIONS and not array_of(zero, model.folder).any()


def _dequantised(
    name: str, weight: _Weight, model: ModelFile, constants: Mapping[str, onnx.TensorProto]
) -> onnx.TensorProto:
    """In the type of the DQ's scale, as ONNX Runtime computes it: in FP32."""
    values = array_of(weight.source, model.folder)
    scale = array_of(constants[weight.dequantize.input[1]], model.folder)
    axis = _axis(weight.dequantize, scale)

    def part(run: Any) -> NDArray[Any]:
        rows = values[run]
        if weight.quantize is not None:
            steps = array_of(constants[weight.quantize.input[1]], model.folder)
            precision = _PRECISIONS[constants[weight.quantize.input[2]].data_type]
            along = _axis(weight.quantize, steps)
            rows = quantised(rows, _of_rows(steps, along, values.ndim, run), along, precision)
        return dequantised(rows, _of_rows(scale, axis, values.ndim, run), axis).astype(scale.dtype)

    parts = map(part, runs_of_rows(values))
    return constant_of_parts(parts, scale.dtype, values.shape, name, model.spool)


def _of_rows(scale: NDArray[Any], axis: int | None, rank: int, run: Any) -> NDArray[np.float32]:
    """The scales of some of a weight's rows: the same for all unless each row has its own."""
    return (scale[run] if axis is not None and axis % rank == 0 else scale).astype(np.float32)


def _axis(node: onnx.NodeProto, scale: NDArray[Any]) -> int | None:
    """The axis along which each slice has a scale of its own; ONNX's default is 1."""
    return attribute(node, "axis", 1) if scale.ndim else None
