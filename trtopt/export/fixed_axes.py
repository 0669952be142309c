"""Which node fixed an axis: found from the graph alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

_SHAPED_BY_A_CONSTANT = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0, "Tile": 1, "Slice": 2, "Resize": 3}
"""Operators whose output shape an input decides, and which input."""


def fixing_node(model: onnx.ModelProto, size: int, failing: str | None) -> str | None:
    """The node that wrote the traced `size` of an axis into the graph, or else the `failing` one.

    It is the first one before the failing node (or of the whole graph) whose output shape is decided by a
    constant that holds `size`.
    """
    constants = _constants(model)
    before = _ancestors(model, failing) if failing else None
    for node in model.graph.node:
        index = _SHAPED_BY_A_CONSTANT.get(node.op_type)
        if index is None or len(node.input) <= index or (before is not None and node.name not in before):
            continue
        if size in constants.get(node.input[index], ()):
            return str(node.name)
    return failing


def _constants(model: onnx.ModelProto) -> dict[str, list[int]]:
    """The small integer constants by tensor name."""
    import onnx

    tensors = [(tensor.name, tensor) for tensor in model.graph.initializer]
    tensors += [
        (node.output[0], attribute.t)
        for node in model.graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    ]
    return {
        name: onnx.numpy_helper.to_array(tensor).reshape(-1).tolist()
        for name, tensor in tensors
        if tensor.data_type == onnx.TensorProto.INT64 and not tensor.external_data
    }


def _ancestors(model: onnx.ModelProto, name: str) -> set[str]:
    """The node itself and every node that it depends on."""
    makers = {output: node for node in model.graph.node for output in node.output}
    waiting = [node for node in model.graph.node if node.name == name]
    found: set[str] = set()
    while waiting:
        node = waiting.pop()
        if node.name not in found:
            found.add(node.name)
            waiting += [makers[entry] for entry in node.input if entry in makers]
    return found
