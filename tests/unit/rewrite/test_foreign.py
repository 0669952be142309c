"""Operators of other domains are left alone, whatever they are called, and so are nodes of what has died."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.rewrite_graphs import model
from trtopt.rewrite.rewrite import rewrite_model

SHAPES = """
    g (float[N,3,4] x) => (float[N,12] y) <int64 zero = {0}, int64[1] n = {-1}, int64[1] z = {0}>
    {s = Shape(x) g = Gather(s, zero) u = Unsqueeze(g, z) c = Concat<axis=0>(u, n) y = mine.Reshape(x, c)}"""
PRODUCTS = """
    # w: float[4,8]
    # v: float[4,8]
    g (float[N,4] x) => (float[N,8] y, float[N,8] z) {y = MatMul(x, w) z = mine.MatMul(x, v)}"""
SLICES = """
    # w: float[1024,1024]
    g (float[512,1024] x) => (float[512,1024] y, float[512,1024] z)
    <int64[1] o = {0}, int64[1] h = {512}, int64[1] e = {1024}>
    {a = Slice(w, o, h, o) b = mine.Slice(w, h, e, o) y = Add(x, a) z = Add(x, b)}"""


def rewritten(text: str, rules: list[str] | None, folder: Path) -> tuple[Counter[str], onnx.GraphProto]:
    made = model(text)
    made.opset_import.add(domain="mine", version=1)
    onnx.save(made, folder / "in.onnx")
    trace = rewrite_model(folder / "in.onnx", folder / "out.onnx", target="11", rules=rules, check=False)
    return Counter(trace.counts), onnx.load(folder / "out.onnx").graph


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("plain-reshape", SHAPES),
        ("merge-matmuls", PRODUCTS),
        ("fold-weights", SLICES),
    ],
)
def test_an_operator_that_is_called_like_onnxs_own_is_none(rule: str, text: str, tmp_path: Path) -> None:
    counts, graph = rewritten(text, [rule], tmp_path)
    assert not counts
    assert sum(node.domain == "mine" for node in graph.node) == 1
    assert rewritten(text.replace("mine.", ""), [rule], tmp_path)[0][rule] >= 1  # of ONNX's own it would be


DEAD_INSIDE = """
    g (float[2,3] x) => (float[2,3] y) <bool yes = {1}, float zero = {0.0}>
    {y = If(yes) <
        then_branch = t () => (float[2,3] a) {a = Abs(x)},
        else_branch = e () => (float[2,3] b) {
            m = ReduceMax<keepdims=0>(x) c = Greater(m, zero)
            b = If(c) <then_branch = p () => (float[2,3] i) {i = Relu(x)},
                       else_branch = q () => (float[2,3] j) {k = Identity(x) j = Neg(k)}>}>}"""
DEAD_BEHIND = """
    g (float[2,3] x) => (float[2,3] y) <float zero = {0.0}, int64 first = {0}>
    {m = ReduceMax<keepdims=0>(x) c = Greater(m, zero)
     i = If(c) <then_branch = t () => (float[2,3] a) {s = Shape(x) g = Gather(s, first) a = Reshape(x, s)},
                else_branch = e () => (float[2,3] b) {b = Relu(x)}>
     h = Shape(i) k = ConstantOfShape(h) y = Add(x, k)}"""


@pytest.mark.parametrize(("text", "rule"), [(DEAD_INSIDE, "inline-if"), (DEAD_BEHIND, "fold-shapes")])
def test_what_dies_with_the_node_around_it_is_not_looked_at(text: str, rule: str, tmp_path: Path) -> None:
    onnx.save(model(text), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="11")
    assert trace.counts[rule] >= 1
    assert not any(node.op_type == "If" for node in onnx.load(tmp_path / "out.onnx").graph.node)


def test_a_step_that_is_computed_is_not_taken_for_one(tmp_path: Path) -> None:
    text = """
        g (float[2,P,Q,3] x, int64[1] step) => (float[K] y)
        <int64[1] o = {0}, int64[1] e = {4}, int64[1] z = {0}>
        {s = Shape(x) t = Slice(s, o, e, z, step) r = Reshape(x, t) y = ReduceSum<keepdims=0>(r, o)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="11", clean=True, check=False)
    assert "plain-reshape" not in trace.counts
    feed = {"x": np.ones((2, 1, 1, 3), np.float32), "step": np.array([3], np.int64)}
    first, second = (
        onnxruntime.InferenceSession(tmp_path / name, providers=["CPUExecutionProvider"]).run(None, feed)[0]
        for name in ("in.onnx", "out.onnx")
    )
    assert first.shape == second.shape == (3,)


def test_a_sequence_of_constants_is_no_constant(tmp_path: Path) -> None:
    text = """
        # w: float[2,3]
        g (float[2,3] x) => (float[2,3] y) <int64 i = {0}>
        {s = SequenceConstruct(w, w) a = SequenceAt(s, i) y = Add(x, a)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="11", rules=["fold-constants"])
    assert trace.applied == ()


def test_an_input_of_length_zero_is_run_as_such(tmp_path: Path) -> None:
    text = "g (float[2,0,4] x) => (float[2,0,4] y) {a = Identity(x) y = Relu(a)}"
    onnx.save(model(text), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="11")
    assert trace.checked[0].feed == "seed 0, small (2x0x4)"


def test_an_instance_normalisation_in_fp64_keeps_its_constants_type(tmp_path: Path) -> None:
    text = """
        g (double[N,2,H] x) => (double[N,2,H] y) <double[2] c = {1.0, 2.0}, double[2] d = {1.0, 2.0}>
        {y = InstanceNormalization(x, c, d)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    rules = ["plain-instance-norm"]
    out = tmp_path / "out.onnx"
    trace = rewrite_model(tmp_path / "in.onnx", out, target="8.6", rules=rules, check=False)
    assert "neither FP32 nor FP16" in trace.declined[0].reason
