"""Whole models: rewritten for each target, equal, and TensorRT-RTX still builds them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.rewrite_graphs import FIRES, Case, model
from tests.support.paths import ROOT
from trtopt.rewrite.rewrite import rewrite_model

_DIGITS = ROOT / "models" / "digits" / "digits.onnx"
_AUDIT = ROOT / "benchmarks" / "fusion-audit" / "fusion_audit.py"
_TARGETS = ("8.6", "10", "11", "rtx")


def _layers(path: Path) -> int:
    """How many layers TensorRT-RTX makes of the model, every dynamic axis at 2 (16 for what is spatial)."""
    trt = pytest.importorskip("tensorrt_rtx")
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, trt.Logger(trt.Logger.ERROR))
    assert parser.parse_from_file(str(path)), [parser.get_error(index) for index in range(parser.num_errors)]
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    for index in range(network.num_inputs):
        item = network.get_input(index)
        if -1 in item.shape:
            shape = [axis if axis > 0 else 16 if place >= 2 else 2 for place, axis in enumerate(item.shape)]
            profile.set_shape(item.name, shape, shape, shape)
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(network, config) is not None
    return int(network.num_layers)


@pytest.mark.skipif(not _DIGITS.exists(), reason="the digits model is not in this checkout")
@pytest.mark.parametrize("target", _TARGETS)
def test_the_digits_model_stays_the_same_function(target: str, tmp_path: Path) -> None:
    trace = rewrite_model(_DIGITS, tmp_path / "out.onnx", target=target)
    assert trace.undone == ()
    assert trace.nodes_after <= trace.nodes_before
    rewrite_model(tmp_path / "out.onnx", tmp_path / "again.onnx", target=target)
    assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / "again.onnx").read_bytes()
    assert _layers(tmp_path / "out.onnx") <= _layers(_DIGITS)


_BUILT = [case for case in FIRES if case.opset <= 22 and "double" not in case.text]


@pytest.mark.parametrize("case", _BUILT, ids=lambda case: case.id)
def test_tensorrt_builds_what_a_rule_leaves(case: Case, tmp_path: Path) -> None:
    onnx.save(model(case.text, case.opset), tmp_path / "in.onnx")
    rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="rtx", rules=[case.rule])
    assert _layers(tmp_path / "out.onnx") > 0


def test_a_pool_with_indices_builds_only_without_them(tmp_path: Path) -> None:
    case = next(case for case in FIRES if case.rule == "drop-unused")
    onnx.save(model(case.text, case.opset), tmp_path / "in.onnx")
    with pytest.raises(AssertionError, match="1 outputs for MaxPool"):
        _layers(tmp_path / "in.onnx")


@pytest.mark.long
def test_the_fusion_audit_builds_its_pairs_without_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    run = [sys.executable, str(_AUDIT)]
    subprocess.run([*run, "pairs", str(tmp_path)], check=True, capture_output=True)
    chosen = ["--module", "tensorrt_rtx", "--rules", "drop-unused,fold-scale"]
    subprocess.run([*run, "build", str(tmp_path), *chosen], check=True, capture_output=True)
    told = json.loads((tmp_path / "layers.json").read_text())
    verdicts = {(pair["rule"], pair["case"]): pair["verdict"] for pair in told["pairs"]}
    assert told["problems"] == {}
    assert verdicts["drop-unused", "indices of a pool"] == "builds only after"
    assert "fold-scale" in {rule for rule, _ in verdicts}
