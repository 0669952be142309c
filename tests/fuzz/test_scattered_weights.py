"""Wherever a model's weights lie, it is rewritten, cast and quantised to the same function, bit by bit.

A failure names its number: `ScatteredNet(NUMBER).model()` is that network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import trtopt
from tests.fuzz.scattered_weights import SHAPE, ScatteredNet, scatter
from trtopt.requests.models import QuantizeOptions
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.workflows.precision.quantize import quantize

pytestmark = pytest.mark.long

STAGES = ("rewritten", "cast", "quantised")


def outputs(path: Path, samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the file gives by ONNX Runtime alone, which finds the weights itself."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": samples})[0])


def write_stages(folder: Path) -> None:
    source, data = folder / "m.onnx", folder.parent / "x.npz"
    rewrite_model(source, folder / "rewritten.onnx", target="10")
    trtopt.cast(source, folder / "cast.onnx", precision="fp16", data=data)
    quantize(
        source, folder / "quantised.onnx", QuantizeOptions(precision="int8", target="10", data=str(data))
    )


@pytest.mark.parametrize("number", range(8))
def test_where_weights_lie_changes_no_result(number: int, tmp_path: Path) -> None:
    samples = np.random.default_rng(number).standard_normal((8, *SHAPE[1:])).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=samples)
    inline, scattered = tmp_path / "inline", tmp_path / "scattered"
    model = ScatteredNet(number).model()
    for folder in (inline, scattered):
        folder.mkdir()
    onnx.save(model, inline / "m.onnx")
    scatter(model, scattered / "m.onnx", number)
    for folder in (inline, scattered):
        write_stages(folder)
    for stage in STAGES:
        results = [outputs(folder / f"{stage}.onnx", samples) for folder in (inline, scattered)]
        assert np.isfinite(results[0]).all(), stage
        np.testing.assert_array_equal(*results, err_msg=stage)
