"""The case study's notebook runs from top to bottom, and its models do their task."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import onnx
import pytest

from tests.support.paths import ROOT

FOLDER = ROOT / "docs" / "case_study"


def test_the_notebook_goes_from_training_to_a_repository_that_triton_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    notebook = json.loads((FOLDER / "case_study.ipynb").read_text("utf-8"))
    scope: dict[str, object] = {}
    try:
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), scope)
    finally:
        sys.modules.pop("case_study", None)
    shares = [
        float(line.split("accuracy ")[1].split("%")[0])
        for line in capsys.readouterr().out.splitlines()
        if ": accuracy" in line
    ]
    assert shares == pytest.approx([shares[0]] * 3, abs=1.0)  # FP32, FP16 and INT8
    assert shares[0] > 85
    file = onnx.load("counter.onnx")
    assert [output.name for output in file.graph.output] == ["logits", "features"]
    assert 'platform: "onnxruntime_onnx"' in Path("repository/counter/config.pbtxt").read_text("utf-8")
