"""Weights of the type that their node computes in.

Folding BatchNorm into BF16 convolutions, PyTorch's exporter computes the new weights in FP32 and leaves them
so, which is not valid ONNX: a convolution's inputs have one type.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

_ONE_TYPE = {"Conv", "ConvTranspose"}


def align_weights(model: onnx.ModelProto, folder: Path) -> None:
    """Cast FP32 weights of convolutions over BF16 to BF16, in place; external ones are read from `folder`."""
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
