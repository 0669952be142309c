"""A 16-bit model with the same weights in FP32 arithmetic, to be compared where 16-bit kernels lack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtopt.onnxio.graph_walk import TYPE_ATTRIBUTES

if TYPE_CHECKING:
    import onnx


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `model`, its weights loaded, in which every FP16 and BF16 type is FP32."""
    import onnx

    halves = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    graph = wide.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in halves:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for tensor in graph.initializer:
        _widen_tensor(tensor, halves)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in TYPE_ATTRIBUTES and attribute.i in halves:
                attribute.i = onnx.TensorProto.FLOAT
            if attribute.HasField("t"):
                _widen_tensor(attribute.t, halves)
    return wide


def _widen_tensor(tensor: onnx.TensorProto, halves: tuple[int, ...]) -> None:
    import onnx

    if tensor.data_type in halves:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
