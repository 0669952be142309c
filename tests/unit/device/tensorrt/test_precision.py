"""Which tensors are held in FP32 on a builder that chooses types itself."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from trtopt.device.tensorrt.precision import constrain, declared_fp32
from trtopt.errors import InvalidModelError
from trtopt.onnxio.graph_walk import RANGES, WEAK_TYPES


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


def test_metadata_that_holds_no_ranges_is_refused(tmp_path: Path) -> None:
    model = _relus(cast_first=False)
    for text in ("{", '{"ranges": {"y": -1}}', '{"types": {"y": "HALF!"}}'):
        onnx.helper.set_model_props(model, {RANGES: text})
        onnx.save(model, tmp_path / "relus.onnx")
        with pytest.raises(InvalidModelError, match=r"relus\.onnx"):
            constrain(None, None, None, ("float16", "int8"), tmp_path / "relus.onnx")


def test_beside_fp16_tensors_the_declared_fp32_ones_are_held() -> None:
    assert declared_fp32(_relus(cast_first=True)) == {"y", "z"}
