"""A peer's quantised graph, which travels without its weights and scales."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import trtopt
from tests.support.command_line import DIGITS, HELDOUT

SHARED = Path(__file__).parents[2] / "benchmarks" / "shared"


def test_a_peers_scales_are_found_anew_for_other_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(SHARED)
    from peer_graphs import recalibrated

    images = {"images": np.load(HELDOUT)["images"][:32]}
    np.savez(tmp_path / "samples.npz", **images)
    quantized = tmp_path / "int8.onnx"
    trtopt.quantize(DIGITS, quantized, precision="int8", target="8.6", data=tmp_path / "samples.npz")
    model = onnx.load(quantized)
    right = onnxruntime.InferenceSession(DIGITS).run(None, images)[0]
    scales = {node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    for tensor in model.graph.initializer:
        if tensor.name in scales:
            spoilt = numpy_helper.to_array(tensor) / 20
            tensor.CopyFrom(numpy_helper.from_array(spoilt.astype(np.float32), tensor.name))
    assert sqnr_db(right, outputs(model, images)) < 10
    assert sqnr_db(right, outputs(recalibrated(model, images), images)) > 25


def outputs(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0])


def sqnr_db(right: np.ndarray, found: np.ndarray) -> float:
    return float(10 * np.log10((right**2).sum() / ((right - found) ** 2).sum()))
