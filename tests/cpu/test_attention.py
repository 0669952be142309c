"""ONNX's Attention, which TensorRT keeps whole, built by TensorRT-RTX."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import trtopt


@pytest.mark.parametrize("head", [8, 64])
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_attention_builds_also_where_no_fused_kernel_fits(tmp_path: Path, head: int, dtype: int) -> None:
    shape = ["N", 4, 32, head]
    inputs = [helper.make_tensor_value_info(name, dtype, shape) for name in ("query", "key", "value")]
    output = helper.make_tensor_value_info("answer", dtype, shape)
    node = helper.make_node("Attention", ["query", "key", "value"], ["answer"], "attend", scale=0.1)
    graph = helper.make_graph([node], "attention", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    onnx.save(model, tmp_path / "attention.onnx")
    manifest = trtopt.build(tmp_path / "attention.onnx", tmp_path / "d", batch=(2,), backend="tensorrt-rtx")
    (engine,) = manifest.engines
    assert engine.builder_config["attentions_allowed_to_decompose"] == "1"
    assert [tensor.name for tensor in engine.outputs] == ["answer"]
