"""The rewrite as a step of a build: by rules with evidence or by all, proved, kept beside the engines."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import onnx
import pytest

import trtopt
from tests.rewrite_graphs import FIRES, model as graph
from tests.support.command_line import DIGITS, CommandLine
from trtopt.errors import TrtoptError
from trtopt.files.manifests import read_manifest
from trtopt.onnxio.model_info import read_onnx
from trtopt.records import Manifest, from_json
from trtopt.rewrite import rewrite as api
from trtopt.rewrite.rewrite_trace import RewriteTrace
from trtopt.rewrite.rule import Verdict, at, rule
from trtopt.rewrite.scope import Scope
from trtopt.workflows.build import graph as kept_graph


@pytest.fixture
def wordy(tmp_path: Path) -> Path:
    """The digits model with an Identity in front of its output."""
    model = onnx.load(str(DIGITS))
    model.graph.node.append(onnx.helper.make_node("Identity", ["logits"], ["same"], name="useless"))
    model.graph.output[0].name = "same"
    onnx.save(model, str(tmp_path / "wordy.onnx"))
    return tmp_path / "wordy.onnx"


def _build(model: Path, out: Path, **flags: object) -> Manifest:
    return trtopt.build(model, out, backend="tensorrt-rtx", **{"rewrite": "all", **flags})


def test_a_build_applies_what_the_model_needs_to_be_read_and_no_rule_without_evidence(tmp_path: Path) -> None:
    text = "g (float[2,4,8,8] x) => (float[2,4,4,4] y) {"
    text += "a, unused = MaxPool <kernel_shape=[2,2], strides=[2,2]> (x) y = Identity(a)}"
    onnx.save(graph(text), tmp_path / "model.onnx")
    manifest = _build(tmp_path / "model.onnx", tmp_path / "out", rewrite="default")
    assert manifest.rewrite is not None
    assert manifest.rewrite.applied == {"drop-unused": 1}
    with pytest.raises(TrtoptError, match="MaxPool"):
        _build(tmp_path / "model.onnx", tmp_path / "unread", rewrite="none")


def test_a_build_reads_the_biases_of_onnx_runtimes_quantiser(tmp_path: Path) -> None:
    case = next(case for case in FIRES if case.rule == "fold-bias")
    onnx.save(graph(case.text), tmp_path / "model.onnx")
    manifest = _build(tmp_path / "model.onnx", tmp_path / "out", rewrite="default")
    assert manifest.rewrite is not None
    assert manifest.rewrite.applied == {"fold-bias": 1}
    with pytest.raises(TrtoptError, match="DequantizeLinear"):
        _build(tmp_path / "model.onnx", tmp_path / "unread", rewrite="none")


def test_a_build_rewrites_first_and_keeps_the_trace_and_the_origin(wordy: Path, tmp_path: Path) -> None:
    manifest = _build(wordy, tmp_path / "out")
    text = (tmp_path / "out" / "rewrite.json").read_bytes()
    trace, summary = from_json(text, RewriteTrace), manifest.rewrite
    assert summary is not None
    assert summary.applied == trace.counts == {"erase-identity": 1}
    assert summary.undone == {}
    assert summary.nodes_after == summary.nodes_before - 1
    assert (summary.inputs_checked, summary.largest_error) == (2, 0.0)
    assert manifest.files["rewrite.json"] == hashlib.sha256(text).hexdigest()
    assert (summary.target, summary.trace) == ("rtx", "rewrite.json")
    assert str(tmp_path) not in text.decode()
    assert "1 erase-identity" in manifest.notes[-1]
    assert manifest.onnx.parent == read_onnx(wordy).sha256
    assert manifest.engines[0].plan.onnx_sha256 == manifest.onnx.sha256
    assert read_onnx(tmp_path / "out" / "model.onnx").sha256 == manifest.onnx.sha256
    assert read_manifest(tmp_path / "out") == manifest


def test_a_second_build_of_a_rewritten_model_has_the_same_plan(wordy: Path, tmp_path: Path) -> None:
    first, second = (_build(wordy, tmp_path / name) for name in ("first", "second"))
    assert first.onnx == second.onnx
    assert [engine.plan.key for engine in first.engines] == [engine.plan.key for engine in second.engines]


def test_without_a_rewrite_the_model_is_kept_to_the_byte(wordy: Path, trtopt_cli: CommandLine) -> None:
    done = trtopt_cli("build", wordy, "-o", "out", "--backend", "tensorrt-rtx", "--rewrite", "none")
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(trtopt_cli.folder / "out")
    assert (manifest.onnx.parent, manifest.rewrite) == (None, None)
    assert (trtopt_cli.folder / "out" / "model.onnx").read_bytes() == wordy.read_bytes()
    assert not (trtopt_cli.folder / "out" / "rewrite.json").exists()


def test_where_no_rule_applies_the_model_is_kept_to_the_byte(rtx_build: Path) -> None:
    manifest = read_manifest(rtx_build)
    assert manifest.onnx.parent is None
    assert manifest.rewrite is not None
    assert manifest.rewrite.applied == {}
    assert (rtx_build / "model.onnx").read_bytes() == DIGITS.read_bytes()


def test_a_model_that_cannot_be_proved_is_built_unchanged(tmp_path: Path) -> None:
    made = graph("g (bfloat16[4,4] x) => (bfloat16[4,4] y) {a = Identity(x) b = Sigmoid(a) y = Relu(b)}")
    onnx.save(made, tmp_path / "model.onnx")
    manifest = _build(tmp_path / "model.onnx", tmp_path / "out")
    assert manifest.rewrite is None
    assert manifest.notes[-1].startswith("not rewritten: ONNX Runtime cannot run the model")
    assert (tmp_path / "out" / "model.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()


def test_a_model_that_memory_does_not_hold_once_is_built_as_it_is(
    wordy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = wordy.stat().st_size
    monkeypatch.setattr(kept_graph, "_available_memory", lambda: size - 1)
    manifest = _build(wordy, tmp_path / "out")
    assert (manifest.rewrite, manifest.onnx.parent) == (None, None)
    assert "of memory" in manifest.notes[-1]
    monkeypatch.setattr(kept_graph, "_available_memory", lambda: size)
    assert _build(wordy, tmp_path / "rewritten").rewrite is not None


def test_large_models_are_proved_at_one_size(
    wordy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_graph, "_ONE_SIZE_BYTES", wordy.stat().st_size)
    summary = _build(wordy, tmp_path / "out").rewrite
    assert summary is not None
    assert summary.inputs_checked == 1


def test_a_rule_that_raises_is_left_out_of_the_build_and_told(
    wordy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @rule("", "B", "")
    @at("Identity")
    def fail(scope: Scope, node: Any) -> Verdict:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(api, "RULES", (fail,))
    manifest = _build(wordy, tmp_path / "out")
    assert manifest.rewrite is not None
    assert "rule 'fail' failed at 'useless'" in manifest.rewrite.undone["fail"]
    assert "undone fail" in manifest.notes[-1]


TWO_PRODUCTS = """
    # w: float[8,16]
    # u: float[8,16]
    g (float[batch,8] x) => (float[batch,16] y) {
        a = MatMul(x, w)
        b = MatMul(x, u)
        c = Relu(a)
        y = Add(c, b)
    }"""


def test_a_rule_that_is_off_is_applied_where_it_is_named(tmp_path: Path, trtopt_cli: CommandLine) -> None:
    onnx.save(graph(TWO_PRODUCTS), trtopt_cli.folder / "two.onnx")
    words = ("build", "two.onnx", "--backend", "onnxruntime", "--add-rule")
    done = trtopt_cli(*words, "merge-matmuls", "-o", "out")
    assert done.returncode == 0, done.stderr
    rewrite = read_manifest(trtopt_cli.folder / "out").rewrite
    assert rewrite is not None
    assert rewrite.applied == {"merge-matmuls": 1}
    done = trtopt_cli(*words, "merge-matmul", "-o", "other")
    assert done.returncode == 2
    assert "no rule 'merge-matmul'" in done.stderr
    assert not (trtopt_cli.folder / "other").exists()
