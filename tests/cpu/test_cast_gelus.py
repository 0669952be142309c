"""`trtopt cast` for TensorRT 8.6 puts GELUs between INT8 products in FP16, and leaves Q/DQ in FP32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import trtopt
from tests.support.selection_builds import TRANSFORMER
from trtopt.requests.models import QuantizeOptions
from trtopt.workflows.precision.quantize import quantize


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small transformer in INT8, for 8.6."""
    folder = tmp_path_factory.mktemp("quantised")
    np.savez(folder / "tokens.npz", tokens=np.random.default_rng(0).integers(0, 16, (16, 64)))
    quantize(
        TRANSFORMER,
        folder / "int8.onnx",
        QuantizeOptions(precision="int8", target="8.6", data=str(folder / "tokens.npz")),
    )
    return folder / "int8.onnx"


def test_gelus_become_fp16_with_their_biases_and_the_output_hardly_changes(
    quantised: Path, tmp_path: Path
) -> None:
    report = trtopt.cast(quantised, tmp_path / "half.onnx", target="8.6")
    lowered = {node.name: node for node in onnx.load(quantised).graph.node if node.name in report.lowered}
    assert sum(node.op_type == "Erf" for node in lowered.values()) == 3
    graph = onnx.load(tmp_path / "half.onnx").graph
    readers = [node for node in graph.node if node.op_type == "QuantizeLinear"]
    makers = {name: node for node in graph.node for name in node.output}
    behind_casts = [node for node in readers if makers.get(node.input[0], node).op_type == "Cast"]
    assert len(behind_casts) == 3
    assert all(one.op_type not in ("QuantizeLinear", "DequantizeLinear") for one in lowered.values())
    assert min(one.cosine or 0.0 for one in report.differences) > 0.999


def test_a_gelu_whose_values_are_too_large_stays_whole_in_fp32(quantised: Path, tmp_path: Path) -> None:
    report = trtopt.cast(quantised, tmp_path / "half.onnx", target="8.6", threshold=1e-3)
    kinds = {node.name: node.op_type for node in onnx.load(quantised).graph.node}
    assert "Erf" not in {kinds[name] for name in report.lowered}
