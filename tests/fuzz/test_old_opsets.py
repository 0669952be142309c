"""Random networks of old opsets, raised, rewritten, cast and quantised: they compute what they did.

A failure names its number: `OldNet(NUMBER, smooth=…).model()` is that network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import trtopt
from tests.fuzz.old_models import SHAPE, OldNet
from trtopt.onnxio.model_file import load
from trtopt.onnxio.newer_opset import raise_opset
from trtopt.precision.compare import open_model
from trtopt.requests.models import QuantizeOptions
from trtopt.workflows.precision.quantize import quantize

pytestmark = pytest.mark.long


def outputs(path: Path, samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return next(iter(open_model(load(path)).run({"x": samples}).values()))


@pytest.fixture
def samples() -> np.ndarray[Any, Any]:
    return np.random.default_rng(5).standard_normal((8, *SHAPE[1:])).astype(np.float32)


@pytest.mark.parametrize("tens", range(9))
def test_a_raised_network_computes_what_it_did(
    tens: int, samples: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    for number in range(tens * 10, tens * 10 + 10):
        model = OldNet(number, smooth=False).model()
        onnx.save(model, tmp_path / "old.onnx")
        before = outputs(tmp_path / "old.onnx", samples)
        for to in (13, 19, 21):
            new = onnx.ModelProto()
            new.CopyFrom(model)
            raise_opset(new, to)
            onnx.save(new, tmp_path / "new.onnx")
            after = outputs(tmp_path / "new.onnx", samples)
            slack = 1e-5 * np.abs(before).max()  # ONNX Runtime averages in another order from opset 19 on
            np.testing.assert_allclose(after, before, 0, slack, err_msg=f"{number} to {to}")


@pytest.mark.parametrize("number", range(1000, 1012))
def test_a_network_quantised_and_one_cast_compute_nearly_what_they_did(
    number: int, samples: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    source = tmp_path / "old.onnx"
    onnx.save(OldNet(number, smooth=True).model(), source)
    np.savez(tmp_path / "x.npz", x=samples)
    before = outputs(source, samples)
    trtopt.cast(source, tmp_path / "cast.onnx", precision="fp16", data=tmp_path / "x.npz")
    for target in ("8.6", "10"):
        quantize(
            source,
            tmp_path / f"{target}.onnx",
            QuantizeOptions(precision="int8", target=target, data=str(tmp_path / "x.npz")),
        )
    for name, least_db in (("cast", 40), ("8.6", 15), ("10", 15)):
        error = outputs(tmp_path / f"{name}.onnx", samples) - before
        assert np.square(error).sum() <= np.square(before).sum() * 10 ** (-least_db / 10), name
