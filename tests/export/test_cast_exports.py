"""Exported networks in 16 bits: they run, build with TensorRT-RTX on the CPU, and still do their task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import trtopt
from tests.export.test_trained import SENTENCES
from tests.support.paths import ROOT
from trtopt.device.ort.reference import open_reference
from trtopt.errors import BackendMissingError
from trtopt.export.export import export
from trtopt.export.source_module import Subject, from_spec, sibling_function
from trtopt.export.spec import files, read_spec
from trtopt.onnxio.model_file import load
from trtopt.precision.compare import open_model
from trtopt.requests.models import QuantizeOptions
from trtopt.workflows.precision.quantize import quantize

MEASURED = ROOT / "benchmarks" / "minilm"
FEED_FORWARD_ENDS = ("encoder.layer.?.output.dense/MatMul",)
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
    report = trtopt.cast(source, tmp_path / "half.onnx", precision="fp16")
    onnx.checker.check_model(onnx.load(tmp_path / "half.onnx"), full_check=True)
    assert not [kept for kept in report.kept if kept.rule in ("opset", "weight", "range")]
    assert all(item.mismatched == 0 and item.cosine > 0.999 for item in report.differences)
    rtx = pytest.importorskip("rtx", reason="tensorrt_rtx is not installed", exc_type=ImportError)
    sizes = read_spec(files()[name]).variants["tiny"].sizes
    assert rtx.build(tmp_path / "half.onnx", subject.inputs, subject.axes, sizes) == []


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported("minilm", "full", tmp_path_factory.mktemp("minilm"))[0]


tokenize = sibling_function(files()["minilm"], "minilm.py:tokenize")
agreement = sibling_function(files()["minilm"], "minilm.py:retrieval_agreement")


def test_minilm_in_fp16_finds_the_neighbours_that_it_finds_in_fp32(minilm: Path, tmp_path: Path) -> None:
    tokens = tokenize(SENTENCES)
    np.savez(tmp_path / "tokens.npz", **tokens)
    trtopt.cast(minilm, tmp_path / "half.onnx", precision="fp16", data=tmp_path / "tokens.npz", compare=False)
    wanted = open_reference(minilm)(tokens)["embedding"]
    found = open_model(load(tmp_path / "half.onnx")).run(tokens)["embedding"]
    assert agreement(wanted, found, k=1) >= 0.99


def embeddings(model: Path, sentences: list[str]) -> np.ndarray:
    """Of sentences of like length at a time, so that little is padding."""
    session, order = open_model(load(model)), sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
    parts = [order[start : start + 32] for start in range(0, len(order), 32)]
    found = [session.run(tokenize([sentences[index] for index in part]))["embedding"] for part in parts]
    return np.concatenate(found)[np.argsort(order)]


def test_minilm_in_int8_finds_the_neighbours_that_it_finds_in_fp32(minilm: Path, tmp_path: Path) -> None:
    """On hard sentences: benchmarks/minilm tells which layers have to stay in float for that."""
    halves = sibling_function(MEASURED / "README.md", "corpora.py:halves")
    calibration, sentences = halves("docstrings")
    np.savez(tmp_path / "tokens.npz", **tokenize(calibration))
    request = QuantizeOptions(
        precision="int8",
        target="8.6",
        data=str(tmp_path / "tokens.npz"),
        method="max",
        exclude=FEED_FORWARD_ENDS,
    )
    quantize(minilm, tmp_path / "int8.onnx", request)
    wanted, found = embeddings(minilm, sentences), embeddings(tmp_path / "int8.onnx", sentences)
    assert agreement(wanted, found, k=1) >= 0.95
