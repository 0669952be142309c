"""`trtopt bisect` with engines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.support.gpu_digits import DIGITS, HELDOUT, SOURCES
from tests.support.outlier import SENSITIVE, save_with_outlier
from trtopt.requests.models import BisectRequest
from trtopt.workflows.precision.bisect import bisect


def test_engines_tell_which_node_int8_spoils(tmp_path: Path) -> None:
    save_with_outlier(DIGITS, tmp_path / "outlier.onnx")
    np.savez(tmp_path / "images.npz", images=np.load(HELDOUT)["images"][:64])
    (tmp_path / "recipe.toml").write_text(f"batch = [8]\ntactic_sources = {json.dumps(SOURCES)}\n")
    request = BisectRequest(
        tmp_path / "outlier.onnx",
        tmp_path / "found.onnx",
        precision="int8",
        min_sqnr=25,
        data=str(tmp_path / "images.npz"),
        method="max",
        profile=str(tmp_path / "recipe.toml"),
        max_evaluations=40,
    )
    report = bisect(request)
    assert report.backend.startswith("tensorrt ")
    assert report.best.nodes == (SENSITIVE,)
    assert [item.batch for item in report.subjects] == [8]
    assert report.best.error <= 1 < report.front[0].error
