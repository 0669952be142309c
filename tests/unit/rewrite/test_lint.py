# ruff: noqa: E501 - graphs read best one statement after another
"""Lint: every check finds what it is for, and a clean graph has nothing to say."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

from tests.rewrite_graphs import model
from trtopt.cli.models import lint
from trtopt.errors import UsageError
from trtopt.rewrite.lint import CHECKS, lint_model

_FOUND = {
    "odd-channels": ("# w: float[12,8,3,3]\ng (float[N,8,8,8] x) => (float[N,12,6,6] y) {a = Relu(x) y = Conv(a, w)}", "12 output"),
    "odd-product": ("# w: float[64,10]\ng (float[N,64] x) => (float[N,10] y) {y = MatMul(x, w)}", "N = 10"),
    "batch-concat": ("g (float[N,4] x) => (float[M,4] y) {y = Concat<axis=0>(x, x)}", "axis 0"),
    "inner-gather": ("g (float[N,4,8] x, int64[K] i) => (float[N,K,8] y) {y = Gather<axis=1>(x, i)}", "axis 1"),
    "leading-reduction": ("g (float[N,4,8] x) => (float[N,8] y) <int64[1] a = {1}> {y = ReduceSum<keepdims=0>(x, a)}", "axes [1] of 3"),
    "topk": ("g (float[N,8000] x) => (float[N,4000] y, int64[N,4000] z) <int64[1] k = {4000}> {y, z = TopK(x, k)}", "4000"),
    "data-dependent-size": ("g (float[N,4] x) => (int64[2,M] y) {y = NonZero(x)}", "NonZero"),
    "control-flow": ("""g (float[N,4] x, bool c) => (float[N,4] y)
        {y = If(c) <then_branch = t () => (float[N,4] p) {p = Relu(x)}, else_branch = e () => (float[N,4] q) {q = Neg(x)}>}""", "If"),
    "zero-point": ("g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, uint8 z = {128}> {q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)}", "not 0"),
    "integer-arithmetic": ("# w: float[3,4]\ng (uint8[N,4] x, uint8[4,8] w8) => (int32[N,8] y) {y = MatMulInteger(x, w8)}", "MatMulInteger"),
    "cast-input": ("g (float[N,4] x) => (float16[N,4] y) {a = Cast<to=10>(x) y = Relu(a)}", "FP32"),
    "attention": ("""g (float[N,S,12] q, float[N,12,S] k, float[N,S,12] v) => (float[N,S,12] y)
        {a = MatMul(q, k) b = Softmax(a) y = MatMul(b, v)}""", "head size 12"),
    "plain-normalisation": ("""g (float[N,S] x) => (float[N,S] y) <float e = {0.1}>
        {m = ReduceMean<axes=[-1]>(x) c = Sub(x, m) p = Mul(c, c) q = ReduceMean<axes=[-1]>(p) r = Add(q, e) s = Sqrt(r) y = Div(c, s)}""",
        "layer-norm declines: a normalised axis is dynamic"),
}  # fmt: skip


def _saved(text: str, folder: Path) -> Path:
    onnx.save(model(text), folder / "in.onnx")
    return folder / "in.onnx"


@pytest.mark.parametrize("check", _FOUND)
def test_a_check_finds_what_it_is_for(check: str, tmp_path: Path) -> None:
    text, words = _FOUND[check]
    found = lint_model(_saved(text, tmp_path), target="10").advice
    hits = [item for item in found if item.check == check]
    assert len(hits) == 1
    assert words in hits[0].reason
    assert hits[0].effect
    assert hits[0].remedy


def test_nodes_of_data_dependent_size_have_a_static_form_of_their_own_or_the_checks(tmp_path: Path) -> None:
    text = """g (float[N,4] x, int64[1] k) => (int64[2,M] y, float[K] z) <int64 zero = {0}, int64 one = {1}>
        {y = NonZero(x) m = ReduceMax<keepdims=0>(k) r = Range(zero, m, one) z = Cast<to=1>(r)}"""
    report = lint_model(_saved(text, tmp_path), target="10")
    nonzero, span = (item.remedy for item in report.advice if item.check == "data-dependent-size")
    assert ("mask" in nonzero, "constant" in span) == (True, True)


def test_operators_without_a_parser_are_found(tmp_path: Path) -> None:
    made = model("g (float[N,4] x) => (float[N,4] y) {a = Relu(x) y = Gelu(a)}", opset=20)
    made.graph.node[0].domain = "vendor"
    made.opset_import.add(domain="vendor", version=1)
    onnx.save(made, tmp_path / "in.onnx")
    reasons = [item.reason for item in lint_model(tmp_path / "in.onnx", target="8.6").advice]
    assert reasons == [
        "vendor::Relu is not a standard operator",
        "this form of Gelu is newer than TensorRT 8.6's parser",
    ]


def test_a_later_version_that_only_takes_more_types_is_no_other_form(tmp_path: Path) -> None:
    text = """g (float[N,4] x) => (float[4,N] y) <float[4] w = {1,1,1,1}>
        {a = RMSNormalization(x, w) b = Cast<to=1>(a) y = Transpose(b)}"""
    onnx.save(model(text, opset=23), tmp_path / "in.onnx")
    reasons = [item.reason for item in lint_model(tmp_path / "in.onnx", target="10").advice]
    assert reasons == ["this form of RMSNormalization is newer than TensorRT 10's parser"]


def test_every_check_is_tested() -> None:
    assert {check.name for check in CHECKS} == {*_FOUND, "foreign-operator"}


def test_the_exit_code_is_3_only_if_requested(tmp_path: Path) -> None:
    path = str(_saved(_FOUND["batch-concat"][0], tmp_path))
    run = CliRunner().invoke
    assert run(lint, [path]).exit_code == 0
    assert run(lint, [path, "--fail-on", "topk"]).exit_code == 0
    assert run(lint, [path, "--fail-on", "batch-concat"]).exit_code == 3
    assert run(lint, [path, "--fail-on", "any", "--json", "-"]).exit_code == 3
    assert isinstance(run(lint, [path, "--fail-on", "nonsense"]).exception, UsageError)


def test_a_normalisation_that_a_rule_takes_is_no_finding(tmp_path: Path) -> None:
    text = _FOUND["plain-normalisation"][0].replace("[N,S]", "[N,8]")
    assert lint_model(_saved(text, tmp_path), target="rtx").advice == ()
