# ruff: noqa: E501 - graphs read best one statement after another
"""Shapes that are computed: what inference tells of them is what ONNX Runtime finds, and rules may trust it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.rewrite_graphs import model
from tests.support.shape_graphs import FEEDS, ShapeGraph, contradictions, run
from trtopt.onnxio import shape_inference
from trtopt.onnxio.model_file import ModelFile
from trtopt.rewrite.driver import scopes_of
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.rules.composed import layer_norm
from trtopt.targets import target_named

_HIDDEN = """
    g (float[N,5,8] x) => (float[P,Q] y)
    <int64 at = {2}, int64[1] two = {2}, int64[1] three = {3}, int64[1] zero = {0}, int64[1] rest = {-1}>
    {s = Shape(x) start = Identity(two) last = Slice(s, start, three, zero) sh = Concat<axis=0>(zero, rest, last)
     r = Reshape(x, sh) t = Shape(r) k = Gather(t, at) l = Unsqueeze(k, zero) u = Concat<axis=0>(l, rest) y = Reshape(r, u)}"""
"""A Slice whose start is no initializer; ONNX takes it for 0, and r for a tensor of five axes."""


def test_a_slice_whose_start_is_no_initializer_misleads_no_rule(tmp_path: Path) -> None:
    onnx.save(model(_HIDDEN), tmp_path / "in.onnx")
    checked = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", clean=True)
    rewrite_model(tmp_path / "in.onnx", tmp_path / "unchecked.onnx", target="10", clean=True, check=False)
    assert (checked.undone, checked.nodes_after) == ((), 1)
    assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / "unchecked.onnx").read_bytes()


def test_a_branchs_output_without_a_shape_has_the_inferred_one_for_rules(tmp_path: Path) -> None:
    branches = """
        g (float[N,4] x, bool c) => (float[] y) {
         y = If (c) <then_branch = t () => (float[] a) <float e = {0.1}, float[1,1,1] two = {2.0}> {
           m = ReduceMean<axes=[1]>(x) s = Sub(x, m) p = Mul(s, s) q = ReduceMean<axes=[1]>(p) r = Add(q, e)
           w = Sqrt(r) d = Div(s, w) a = Mul(d, two)
         }, else_branch = f () => (float[] b) {b = Relu(x)}>}"""
    onnx.save(model(branches), tmp_path / "in.onnx")
    trace = rewrite_model(
        tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", rules=["layer-norm"], check=False
    )
    assert [item.reason for item in trace.declined] == ["a constant adds an axis"]
    inner = onnx.load(tmp_path / "out.onnx").graph.node[0].attribute[0].g
    assert not inner.output[0].type.tensor_type.HasField("shape")


@pytest.mark.parametrize(
    "made",
    [
        "i = Identity(w) v = Slice(s, i, three, zero)",
        "i = Identity(w) v = Slice(s, zero, i)",
        "v = If(yes) <then_branch = a () => (int64[P] o) {o = Slice(s, w, three)}, else_branch = b () => (int64[P] p) {p = Slice(s, w, three)}>",
        "u = Unsqueeze(s, zero) v = Gather(u, first)",
        "u = Unsqueeze(s, zero) w0 = Slice(u, zero, w) v = Squeeze(w0)",
        "u = Unsqueeze(s, zero) t = Unsqueeze(s, w) a = Add(u, t) p = Gather(a, first) v = Sub(p, first)",
        "b = Cast<to=9>(s) v = Cast<to=7>(b)",
    ],
)  # fmt: skip
def test_values_that_onnx_propagates_wrongly_are_not_taken_for_shapes(made: str) -> None:
    text = f"""
        g (float[2,3,4] x) => (float[P] y)
        <int64[1] w = {{1}}, int64[1] zero = {{0}}, int64[1] three = {{3}}, int64 first = {{0}}, bool yes = {{1}}>
        {{s = Shape(x) {made} y = ConstantOfShape(v)}}"""
    made_model = model(text)
    made_model.graph.output[0].type.tensor_type.ClearField("shape")
    (value,) = _outputs(made_model, {"x": np.zeros((2, 3, 4), np.float32)})
    assert contradictions(shape_inference.inferred(made_model), {"y": value}) == []


def _outputs(made: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(run(made, [feed])[0].values())


def test_what_is_propagated_rightly_is_kept() -> None:
    text = """
        g (float[N,3,4] x) => (float[P,Q] y) <int64[1] one = {1}, int64[1] three = {3}, int64[1] rest = {-1}>
        {s = Shape(x) i = Slice(s, one, three) p = ReduceProd(i) m = Mul(one, three) c = Cast<to=6>(s) b = Cast<to=7>(c)
         h = Slice(b, one, three) d = Concat<axis=0>(rest, h) r = Reshape(x, d) z = Concat<axis=0>(m, rest) y = Reshape(r, z)}"""
    told = {
        item.name: item.type.tensor_type.shape.dim
        for item in shape_inference.inferred(model(text)).graph.value_info
    }
    assert [axis.dim_value for axis in told["r"]] == [0, 3, 4]
    graph = shape_inference.inferred(model(text)).graph
    assert graph.output[0].type.tensor_type.shape.dim[0].dim_value == 3
    assert [node.op_type for node in graph.node] == [node.op_type for node in model(text).graph.node]


@settings(derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_any_inferred_shape_is_the_one_that_a_run_finds(seed: int) -> None:
    graph = ShapeGraph(seed)
    made = graph.model(graph.outputs())
    inferred = shape_inference.inferred(made)
    for feed, values in zip(FEEDS, run(made), strict=True):
        assert contradictions(inferred, feed | values) == []


@settings(derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), kept=st.integers(1, 3))
def test_any_graph_that_computes_shapes_is_rewritten_rightly_without_a_check(
    seed: int, kept: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    graph, folder = ShapeGraph(seed), tmp_path_factory.mktemp("graph")
    names = graph.outputs()[-kept:]
    wanted = run(graph.model(names))
    if any(0 in value.shape for found in run(graph.model(graph.outputs())) for value in found.values()):
        return  # ONNX Runtime lets nodes join empty tensors that do not fit
    onnx.save(graph.model(names, {name: value.ndim for name, value in wanted[0].items()}), folder / "in.onnx")
    trace = rewrite_model(folder / "in.onnx", folder / "out.onnx", target="10", clean=True, check=False)
    assert trace.undone == ()
    for first, second in zip(wanted, run(onnx.load(folder / "out.onnx")), strict=True):
        for name, value in first.items():
            np.testing.assert_array_equal(value, second[name])


def test_a_normalisation_of_a_shape_that_is_not_known_is_left() -> None:
    text = """
        g (float[N,4,64] x) => (float[N,4,64] y) <float two = {2.0}, float eps = {0.00001}>
        {m = ReduceMean<axes=[-1]>(x) a = Sub(x, m) p = Pow(a, two) q = ReduceMean<axes=[-1]>(p) r = Add(q, eps) s = Sqrt(r) y = Div(a, s)}"""
    (scope,) = scopes_of(ModelFile(model(text), Path(), external=False), target_named("10"))
    (match,) = layer_norm.find(scope)
    assert callable(match.verdict)
    match.node.inputs[0].shape = None
    (match,) = layer_norm.find(scope)
    assert match.verdict == "a normalised axis is dynamic, or not known"
