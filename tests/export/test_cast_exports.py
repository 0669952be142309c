"""Exported networks in 16 bits: they run, build with TensorRT-RTX on the CPU, and still do their task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from test_trained import SENTENCES

from trtopt.device.reference import open_reference
from trtopt.errors import BackendMissingError
from trtopt.export.collection import files
from trtopt.export.imports import function_beside
from trtopt.export.run import export
from trtopt.export.spec import read_spec
from trtopt.export.subject import Subject, from_spec
from trtopt.onnxmodel.model_file import load
from trtopt.precision.casting.api import cast_model
from trtopt.precision.runs import open_model

NAMES = ("bert-base", "dlrm", "resnet50", "rnnt-encoder")


def exported(name: str, variant: str, folder: Path, **options: object) -> tuple[Path, Subject]:
    try:
        subject = from_spec(files()[name], variant)
    except BackendMissingError as error:
        pytest.skip(error.problem)
    return export(subject, folder / f"{name}.onnx", open_reference, **options).path, subject  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_a_cast_export_runs_and_builds_with_rtx(name: str, tmp_path: Path) -> None:
    source, subject = exported(name, "tiny", tmp_path)
    report = cast_model(source, tmp_path / "half.onnx", precision="fp16")
    onnx.checker.check_model(onnx.load(tmp_path / "half.onnx"), full_check=True)
    assert not [kept for kept in report.kept if kept.rule in ("opset", "weight", "range")]
    assert all(item.mismatched == 0 and item.cosine > 0.999 for item in report.differences)
    rtx = pytest.importorskip("rtx", reason="tensorrt_rtx is not installed", exc_type=ImportError)
    sizes = read_spec(files()[name]).variants["tiny"].sizes
    assert rtx.build(tmp_path / "half.onnx", subject.inputs, subject.axes, sizes) == []


def test_minilm_in_fp16_finds_the_neighbours_that_it_finds_in_fp32(tmp_path: Path) -> None:
    source, _ = exported("minilm", "full", tmp_path)
    tokens = function_beside(files()["minilm"], "minilm.py:tokenize")(SENTENCES)
    np.savez(tmp_path / "tokens.npz", **tokens)
    cast_model(source, tmp_path / "half.onnx", precision="fp16", data=tmp_path / "tokens.npz", compare=False)
    wanted = open_reference(source)(tokens)["embedding"]
    found = open_model(load(tmp_path / "half.onnx")).run(tokens)["embedding"]
    agreement = function_beside(files()["minilm"], "minilm.py:retrieval_agreement")
    assert agreement(wanted, found, k=1) >= 0.99
