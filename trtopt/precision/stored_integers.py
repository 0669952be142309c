"""Constants that a quantised model stores as integers, put back as floats, with a Q in front of their DQ.

Exporters of trained models, and ONNX Runtime's quantiser, keep weights as INT8 or FP8 with a DQ alone and
biases as INT32 with a DQ. A weight becomes n·s behind a Q of the same scale s, which gives n again; a bias,
which TensorRT takes in float only, becomes b·s without a pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.onnxio.graph_walk import OWN_DOMAINS, unused_name
from trtopt.onnxio.model_file import ModelFile, array_of, is_external, spooled
from trtopt.precision.placement.view import attribute
from trtopt.precision.qdq.quantised_values import dequantised

_WEIGHTS = (onnx.TensorProto.INT8, onnx.TensorProto.FLOAT8E4M3FN)
_BIAS = onnx.TensorProto.INT32


def put_back(model: ModelFile) -> None:
    """Put every such constant of the main graph back, in place; blocks of INT4 stay as they are.

    One that is read under several scales stands for as many weights.
    """
    graph = model.proto.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    taken = {name for node in graph.node for name in (*node.input, *node.output)} | constants.keys()
    nodes: list[onnx.NodeProto] = []
    quantised: dict[tuple[str, ...], str] = {}
    for node in graph.node:
        tensor = constants.get(node.input[0]) if _is_dq(node) else None
        scale = constants.get(node.input[1]) if tensor is not None else None
        if tensor is None or scale is None or tensor.data_type not in (*_WEIGHTS, _BIAS):
            nodes.append(node)
            continue
        if tensor.data_type == _BIAS:
            values = _dequantised(model, node, tensor, scale)
            graph.initializer.append(_stored(model, node.output[0], values, tensor))
            continue
        reading = (*node.input, str(attribute(node, "axis", 1)))
        if reading not in quantised:
            is_first = all(other[0] != tensor.name for other in quantised)
            narrow = tensor.name if is_first else unused_name(tensor.name, taken)
            wide = unused_name(f"{narrow}:float", taken)
            taken |= {narrow, wide}
            values = _dequantised(model, node, tensor, scale)
            graph.initializer.append(_stored(model, wide, values, tensor))
            nodes.append(_quantize(node, tensor.data_type, wide, narrow))
            quantised[reading] = narrow
        node.input[0] = quantised[reading]
        nodes.append(node)
    stored = {key[0] for key in quantised}
    kept = [tensor for tensor in graph.initializer if tensor.name not in stored]
    for field, items in ((graph.node, nodes), (graph.initializer, kept)):
        del field[:]
        field.extend(items)


def _is_dq(node: onnx.NodeProto) -> bool:
    blocks = any(item.name == "block_size" and item.i for item in node.attribute)
    return node.op_type == "DequantizeLinear" and node.domain in OWN_DOMAINS and not blocks


def _dequantised(
    model: ModelFile, node: onnx.NodeProto, tensor: onnx.TensorProto, scale: onnx.TensorProto
) -> NDArray[np.float32]:
    """n·s, the scale along the node's axis if it has several."""
    steps = array_of(scale, model.folder).astype(np.float32)
    axis = attribute(node, "axis", 1) if steps.size > 1 else None
    return dequantised(array_of(tensor, model.folder), steps, axis)


def _stored(
    model: ModelFile, name: str, values: NDArray[Any], instead_of: onnx.TensorProto
) -> onnx.TensorProto:
    if is_external(instead_of) and model.spool is not None:
        return spooled(values, name, model.spool)
    return onnx.numpy_helper.from_array(values, name)


def _quantize(node: onnx.NodeProto, kind: int, source: str, narrow: str) -> onnx.NodeProto:
    """The Q of a weight's DQ; an attribute names its type, as there may be no zero point."""
    made = onnx.helper.make_node("QuantizeLinear", [source, *node.input[1:]], [narrow], f"{node.name}:q")
    made.attribute.extend(item for item in node.attribute if item.name == "axis")
    made.attribute.append(onnx.helper.make_attribute("output_dtype", kind))
    return made
