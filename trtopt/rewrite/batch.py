"""A dynamic batch axis for a model that was exported with a fixed one."""

from __future__ import annotations

import numpy as np
import onnx

from trtopt.errors import FixedBatchError
from trtopt.onnxmodel import feeds, prepare

NAME = "batch"


def fixed_batch(model: onnx.ModelProto) -> int:
    """The batch size that every input has as its first axis.

    Raises:
        FixedBatchError: the inputs' first axes differ, or are dynamic already.
    """
    sizes = {}
    for item in feeds.inputs_of(model):
        axes = item.type.tensor_type.shape.dim
        sizes[item.name] = axes[0].dim_value if axes and axes[0].HasField("dim_value") else 0
    if not sizes or 0 in sizes.values():
        raise FixedBatchError(
            "the batch axis is dynamic already, or an input has none", "leave out --dynamic-batch"
        )
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise FixedBatchError(
            f"the inputs do not share their first axis ({told})", "export with a dynamic batch axis"
        )
    return int(next(iter(sizes.values())))


def _shapes_with_batch(model: onnx.ModelProto, batch: int) -> dict[str, list[int]]:
    """Shape operands of Reshape and Expand nodes whose first number is the batch, by the operand's name."""
    constants = {item.name: item for item in model.graph.initializer if not item.external_data}
    found = {}
    for node in model.graph.node:
        if node.op_type in ("Reshape", "Expand") and node.input[1] in constants:
            value = onnx.numpy_helper.to_array(constants[node.input[1]]).reshape(-1).tolist()
            if value and value[0] == batch and value != [1]:
                found[node.input[1]] = value
    return found


def make_dynamic(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int, list[str]]:
    """A copy of a prepared model whose batch axis is called `batch`, the old size, the operands patched.

    In a Reshape's shape the baked batch becomes −1, or 0 (a copy of the input's axis) if −1 is taken; in an
    Expand's it becomes 1. Outputs whose first axis was the batch get the name too; inner shapes are dropped.

    Raises:
        FixedBatchError: there is no one fixed batch, or it is baked in where it cannot be patched.
    """
    batch = fixed_batch(model)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    users = {name: node.op_type for node in copy.graph.node for name in node.input[1:2]}
    wanted = _shapes_with_batch(copy, batch)
    for node in copy.graph.node:
        shared = [name for name in node.input if name in wanted and node.op_type not in ("Reshape", "Expand")]
        if shared:
            raise FixedBatchError(
                f"the shape {shared[0]!r} is used by {node.op_type} node {node.name!r} too",
                "export the model with a dynamic batch axis",
            )
    for tensor in copy.graph.initializer:
        value = wanted.get(tensor.name)
        if value is not None:
            first = 1 if users[tensor.name] == "Expand" else 0 if -1 in value else -1
            patched = np.array([first, *value[1:]], np.int64)
            tensor.CopyFrom(onnx.numpy_helper.from_array(patched, tensor.name))
    default = {item.name for item in copy.graph.initializer}
    for item in (*copy.graph.input, *copy.graph.output):
        axes = item.type.tensor_type.shape.dim
        if item.name not in default and axes and axes[0].dim_value == batch:
            axes[0].dim_param = NAME
    del copy.graph.value_info[:]
    prepare.inferred(copy)
    return copy, batch, sorted(wanted)
