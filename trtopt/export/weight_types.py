"""Weights in another type: that of their node, or FP32 where 16-bit kernels lack."""

from __future__ import annotations

from pathlib import Path
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


_ONE_TYPE = {"Conv", "ConvTranspose"}


def align_weights(model: onnx.ModelProto, folder: Path) -> None:
    """Cast FP32 weights of convolutions over BF16 to BF16, in place; external ones are read from `folder`.

    Folding BatchNorm into BF16 convolutions, PyTorch's exporter computes the new weights in FP32 and leaves
    them so, which is not valid ONNX: a convolution's inputs have one type.
    """
    import onnx
    from onnx import TensorProto, numpy_helper

    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
    }
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    cast: set[str] = set()
    narrow = onnx.helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    for node in model.graph.node:
        if node.op_type not in _ONE_TYPE or types.get(node.output[0]) != TensorProto.BFLOAT16:
            continue
        for name in node.input[1:]:
            tensor = weights.get(name)
            if tensor is not None and tensor.data_type == TensorProto.FLOAT:
                array = numpy_helper.to_array(tensor, base_dir=str(folder)).astype(narrow)
                tensor.CopyFrom(numpy_helper.from_array(array, name))
                cast.add(name)
    for value in [value for value in model.graph.value_info if value.name in cast]:
        model.graph.value_info.remove(value)
