"""Which tensors are held in FP32 on a builder that chooses types itself."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from trtopt.device.tensorrt.precision import declared_fp32
from trtopt.onnxio.graph_walk import WEAK_TYPES


def _relus(cast_first: bool) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
    if cast_first:
        nodes[:1] = [
            helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
            helper.make_node("Relu", ["half"], ["wide"]),
            helper.make_node("Cast", ["wide"], ["y"], to=TensorProto.FLOAT),
        ]
    x, y, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xyz")
    model = helper.make_model(helper.make_graph(nodes, "relus", [x], [z], value_info=[y]))
    model.metadata_props.add(key=WEAK_TYPES, value="float16")
    return model


def test_an_fp32_graph_that_allows_fp16_is_left_to_the_builder() -> None:
    assert declared_fp32(_relus(cast_first=False)) == set()


def test_beside_fp16_tensors_the_declared_fp32_ones_are_held() -> None:
    assert declared_fp32(_relus(cast_first=True)) == {"y", "z"}
