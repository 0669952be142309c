"""INT8 against FP16 on a GPU: what is handed out is what the measurement says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import trtopt
from tests.support.gpu_digits import DIGITS, HELDOUT, SOURCES
from trtopt.measure.statistics.comparison import Verdict
from trtopt.records import Manifest
from trtopt.workflows.build.folder import receipts_of

TRANSFORMER = DIGITS.parents[1] / "digits_transformer" / "digits_transformer.onnx"


@pytest.fixture(scope="module")
def calib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images to calibrate on."""
    path = tmp_path_factory.mktemp("calibration") / "images.npz"
    with np.load(HELDOUT) as file:
        np.savez(path, images=file["images"][:64])
    return path


BATCHES = (1, 64)


def build(
    model: Path,
    folder: Path,
    calib: Path,
    precision: str,
    batch: tuple[int, ...] = BATCHES,
    forms: str | None = None,
) -> Manifest:
    return trtopt.build(
        model,
        folder,
        batch=batch,
        backend="tensorrt",
        tactic_sources=SOURCES,
        precision=precision,
        data=str(calib),
        forms=forms,
    )


def check_consistent(folder: Path, manifest: Manifest) -> None:
    """Every engine is of the graph that was chosen, and nothing that is slower was."""
    assert manifest.verdict is not None
    hashes = {one.name: one.onnx_sha256 for one in manifest.verdict.candidates}
    for engine, batch in zip(manifest.engines, manifest.verdict.batches, strict=True):
        assert engine.plan.onnx_sha256 == hashes[batch.chosen]
        judged = {one.candidate: one.against_baseline for one in batch.times}
        chosen = judged[batch.chosen]
        assert chosen is None or chosen.verdict != Verdict.SLOWER.value
    report = trtopt.bench(folder, duration=0.2)
    assert [point.batch for point in report.points] == [
        engine.plan.batch.opt[0] for engine in manifest.engines
    ]
    # a small layer may be fastest in FP32, which the build allowed for it was measured
    assert receipts_of(folder, manifest).keys() == {engine.path for engine in manifest.engines}


def test_int8_is_measured_against_fp16_at_every_batch_size(calib: Path, tmp_path: Path) -> None:
    manifest = build(DIGITS, tmp_path / "out", calib, "int8")
    check_consistent(tmp_path / "out", manifest)
    assert manifest.verdict is not None
    for batch in manifest.verdict.batches:
        assert [one.candidate for one in batch.times][:2] == ["fp16", "int8"]
        *regions, outside = batch.regions["int8"]
        covered = sum(one.quantised_ms for one in regions)
        assert covered > outside.quantised_ms  # nearly all of this model is convolutions
        assert {name for one in regions for name in one.nodes} >= {
            "/stem/conv/Conv",
            "/block3/conv2/conv/Conv",
        }
        assert all(one.float_ms > 0 for one in regions)


def test_the_best_precision_is_among_those_that_tensorrt_has(calib: Path, tmp_path: Path) -> None:
    manifest = build(DIGITS, tmp_path / "out", calib, "best")
    check_consistent(tmp_path / "out", manifest)
    assert manifest.verdict is not None
    names = {one.precision for one in manifest.verdict.candidates}
    assert {"fp16", "int8"} <= names <= {"fp32", "fp16", "bf16", "int8", "fp8"}


def test_regions_of_a_transformer_are_reported_or_said_to_share_layers(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.npz"
    with np.load(TRANSFORMER.with_name("heldout.npz")) as file:
        np.savez(tokens, tokens=file["tokens"][:64])
    # no search among forms: it would take the builds for which layers are profiled
    manifest = build(TRANSFORMER, tmp_path / "out", tokens, "int8", (64,), forms="attention=on")
    check_consistent(tmp_path / "out", manifest)
    assert manifest.verdict is not None
    quantised = [one.name for one in manifest.verdict.candidates if one.precision == "int8"]
    assert quantised[0] == "int8.attention=on"
    for batch in manifest.verdict.batches:
        *regions, _ = batch.regions[quantised[0]]
        assert sum(one.regions for one in regions) > 1
        assert all(one.nodes for one in regions)
        assert min(sum(one.float_ms for one in regions), sum(one.quantised_ms for one in regions)) > 0
