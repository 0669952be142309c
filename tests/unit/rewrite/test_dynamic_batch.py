# ruff: noqa: E501 - graphs read best one statement after another
"""`--dynamic-batch`: a batch axis for models that were exported with a fixed batch."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

import trtopt
from tests.rewrite_graphs import model
from tests.support.long import few
from trtopt.errors import FixedBatchError
from trtopt.rewrite.batch_rules import RULES
from trtopt.rewrite.dynamic_batch import follow
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.rewrite_trace import RewriteTrace


def dynamic(text: str, folder: Path, opset: int = 17) -> tuple[RewriteTrace, onnx.GraphProto]:
    onnx.save(model(text, opset), folder / "in.onnx")
    trace = rewrite_model(folder / "in.onnx", folder / "out.onnx", target="10", dynamic_batch=True)
    return trace, onnx.load(folder / "out.onnx").graph


def declared(graph: onnx.GraphProto) -> list[list[str | int]]:
    return [
        [axis.dim_param or axis.dim_value for axis in item.type.tensor_type.shape.dim]
        for item in graph.output
    ]


def joined(folder: Path, axis: int, times: int = 3) -> None:
    """The dynamic model gives for several inputs at once what the fixed one gives for each."""
    fixed, made = (
        onnxruntime.InferenceSession(folder / name, providers=["CPUExecutionProvider"])
        for name in ("in.onnx", "out.onnx")
    )
    item = fixed.get_inputs()[0]
    draw = np.random.default_rng(7).standard_normal
    feeds = [draw(item.shape).astype(np.float32) for _ in range(times)]
    wanted = np.concatenate([fixed.run(None, {item.name: feed})[0] for feed in feeds], axis)
    found = made.run(None, {item.name: np.concatenate(feeds)})[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_baked_batch_becomes_dynamic_and_works_at_two(tmp_path: Path) -> None:
    text = """
        # w: float[12,4]
        g (float[2,3,4] x) => (float[2,4] y) <int64[2] s = {2,12}, int64[2] e = {2,4}>
        {a = Reshape(x, s) b = MatMul(a, w) y = Expand(b, e)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", dynamic_batch=True)
    after = onnx.load(tmp_path / "out.onnx")
    assert after.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert after.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert any("twice" in note for note in trace.notes)


def test_a_class_token_and_a_batch_that_is_a_factor_become_dynamic(tmp_path: Path) -> None:
    text = """
        # w: float[1,1,4]
        # p: float[1,3,4]
        g (float[1,4,4] x) => (float[1,5,4] y, float[1,7,4] z)
        <int64[3] s = {2,2,4}, int64[3] t = {1,4,4}, int64[3] e = {1,1,4}, int64[3] u = {4,1,4}>
        {a = Reshape(x, s) b = Softmax<axis=1>(a) c = Reshape(b, t) d = Expand(w, e) y = Concat<axis=1>(d, c)
         f = Expand(w, u) h = ReduceMax<keepdims=0>(f) i = Add(c, h) z = Concat<axis=-2>(p, i)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", dynamic_batch=True)
    assert any("twice" in note for note in trace.notes)
    after = onnx.load(tmp_path / "out.onnx").graph
    assert [item.type.tensor_type.shape.dim[0].dim_param for item in after.output] == ["batch", "batch"]


def test_shapes_computed_of_constants_and_those_that_allow_zeros_are_patched(tmp_path: Path) -> None:
    text = """
        # w: float[1,1,4]
        g (float[2,3,4] x) => (float[2,4,4] y, float[2,12] z)
        <int64[3] o = {2,1,-1}, int64[3] e = {1,1,1}, int64[3] m = {-1,-1,-1}, int64[2] s = {2,-1}>
        {q = Equal(o, m) r = Where(q, e, o) t = Expand(w, r)
         y = Concat<axis=1>(t, x) z = Reshape<allowzero=1>(x, s)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", dynamic_batch=True)
    assert any("twice" in note for note in trace.notes)


def test_a_shape_that_serves_another_node_too_is_patched_for_its_own(tmp_path: Path) -> None:
    text = """
        g (float[2,3,4] x) => (float[2,12] y, float[2,12] z) <int64[2] s = {2,12}, float[1] one = {1.0}>
        {y = Reshape(x, s) a = Expand(one, s) z = Add(y, a)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", dynamic_batch=True)
    assert any("twice" in note for note in trace.notes)


def test_a_batch_baked_into_subgraphs_becomes_dynamic(tmp_path: Path) -> None:
    text = """
        g (float[2,4,6] x) => (float[2,24] y, float[2,24] z)
        <int64[2] s = {2,24}, float zero = {0.0}, float one = {1.0}>
        {y = Reshape(x, s)
         c = Less(one, zero)
         z = If(c) <
            then_branch = l () => (float[2,24] m) <int64[2] w = {2,24}> {u = Reshape(x, w) m = Neg(u)},
            else_branch = r () => (float[2,24] o) <int64[2] w = {2,-1}> {v = Reshape(x, w) o = Neg(v)}>}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", dynamic_batch=True)
    assert any("twice" in note for note in trace.notes)
    assert all(item.ok for item in trace.checked)
    onnx.checker.check_model(onnx.load(tmp_path / "out.onnx"), full_check=True)


def test_a_batch_that_cannot_be_patched_is_an_error(tmp_path: Path) -> None:
    text = "# w: float[2,4]\ng (float[2,4] x) => (float[2,4] y) {y = Add(x, w)}"
    onnx.save(model(text), tmp_path / "in.onnx")
    with pytest.raises(FixedBatchError, match="Add:y") as caught:
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", dynamic_batch=True)
    assert caught.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


@pytest.mark.parametrize("node", ["Pad(x, n)", "Slice(x, n, to, n)", "Tile(x, n)"])
def test_numbers_that_are_not_one_for_each_axis_are_an_error(node: str, tmp_path: Path) -> None:
    text = f"g (float[2,4] x) => (float y) <int64[1] n = {{0}}, int64[2] to = {{9,9}}> {{y = {node}}}"
    proto = model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(proto, tmp_path / "in.onnx")
    with pytest.raises(FixedBatchError):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", dynamic_batch=True)


def test_a_batch_that_is_dynamic_already_is_said_so(tmp_path: Path) -> None:
    onnx.save(model("g (float[N,4] x) => (float[N,4] y) {y = Relu(x)}"), tmp_path / "in.onnx")
    with pytest.raises(FixedBatchError, match="already"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", dynamic_batch=True)


# ── followed through the graph ──────────────────────────────────────────────────────────────────────────

_HEADS = """
    # w: float[8,24]
    # o: float[8,8]
    g (float[B,5,8] x) => (float[B,5,8] y)
    <int64[4] s = {5,B,3,8}, int64[3] h = {5,H,4}, int64[2] f = {F,8}, int64[3] b = {5,B,8},
     int64 zero = {0}, int64 one = {1}, int64 two = {2}>
    {t = Transpose<perm=[1,0,2]>(x) a = MatMul(t, w) c = Reshape(a, s)
     q0 = Gather<axis=2>(c, zero) k0 = Gather<axis=2>(c, one) v0 = Gather<axis=2>(c, two)
     q1 = Reshape(q0, h) k1 = Reshape(k0, h) v1 = Reshape(v0, h)
     q = Transpose<perm=[1,0,2]>(q1) k = Transpose<perm=[1,2,0]>(k1) v = Transpose<perm=[1,0,2]>(v1)
     e = MatMul(q, k) p = Softmax(e) m = MatMul(p, v) n = Transpose<perm=[1,0,2]>(m)
     r = Reshape(n, f) u = Gemm(r, o) z = Reshape(u, b) y = Transpose<perm=[1,0,2]>(z)}"""


@pytest.mark.parametrize("batch", [1, 2])
def test_attention_with_the_sequence_first_is_followed(batch: int, tmp_path: Path) -> None:
    text = _HEADS.replace("B", str(batch)).replace("H", str(2 * batch)).replace("F", str(5 * batch))
    _, graph = dynamic(text, tmp_path)
    assert declared(graph) == [["batch", 5, 8]]
    joined(tmp_path, 0)


def test_where_the_batch_lies_is_reported_for_each_tensor() -> None:
    text = _HEADS.replace("B", "1").replace("H", "2").replace("F", "5")
    grown = follow(model(text), 1).grown
    assert (grown["c"].axis, grown["q1"].axis, grown["e"].axis) == (1, 1, 0)
    assert (grown["r"].axis, grown["r"].outer) == (0, 5)  # a row a step and sample: Gemm allows nothing else
    assert grown["y"].axis == 0


def test_a_batch_is_followed_past_axes_of_unknown_length(tmp_path: Path) -> None:
    """The sequence has no length yet; what exporters write for attention merges it with the batch."""
    text = """
        # w: float[8,8]
        g (float[2,seq,8] x) => (float[2,seq,8] y)
        <int64[3] h = {-1,4,4}, int64[2] f = {-1,8}, int64[2] tail = {2,8}, int64[1] one = {1}, int64[3] e = {1,1,1},
         float zero = {0.0}, int64[1] b = {1}, int64[1] c = {1}>
        {t = Transpose<perm=[1,0,2]>(x) a = Reshape(t, h) q = Transpose<perm=[1,0,2]>(a) k = Transpose<perm=[1,2,0]>(a)
         m = MatMul(q, k) p = Softmax(m) v = MatMul(p, q) o = Transpose<perm=[1,0,2]>(v) r = Reshape(o, f)
         l = MatMul(r, w) n = Shape<start=1,end=2>(x) s = Concat<axis=0>(n, tail) u = Reshape(l, s)
         g0 = Concat<axis=0>(b, n, c) z = Expand(zero, g0) y0 = Transpose<perm=[1,0,2]>(u) y = Add(y0, z)}"""
    trace, graph = dynamic(text, tmp_path)
    assert declared(graph) == [["batch", "seq", 8]]
    assert any("twice" in note for note in trace.notes)


def test_what_is_merged_with_the_batch_by_a_computed_shape_is_followed(tmp_path: Path) -> None:
    """Inference has but a new name for the merged axis: it follows from the others."""
    text = """
        g (float[2,3,seq,4] x) => (float[2,3,4,seq] y)
        <int64[1] all = {-1}>
        {n = Shape<start=2,end=3>(x) d = Shape<start=3,end=4>(x) s = Concat<axis=0>(all, n, d) r = Reshape(x, s)
         t = Transpose<perm=[0,2,1]>(r) h = Shape<start=0,end=2>(x) b = Concat<axis=0>(h, d, n) y = Reshape(t, b)}"""
    _, graph = dynamic(text, tmp_path)
    assert declared(graph) == [["batch", 3, 4, "seq"]]


def test_a_recurrent_layer_loses_its_zeros_and_keeps_its_batch(tmp_path: Path) -> None:
    text = """
        # w: float[1,16,6]
        # r: float[1,16,4]
        g (float[1,5,6] x) => (float[1,5,4] y)
        <float[1,1,4] h = {0,0,0,0}, int64[3] s = {5,1,4}>
        {t = Transpose<perm=[1,0,2]>(x) l = LSTM<hidden_size=4>(t, w, r, , , h, h)
         p = Transpose<perm=[0,2,1,3]>(l) q = Reshape(p, s) y = Transpose<perm=[1,0,2]>(q)}"""
    _, graph = dynamic(text, tmp_path)
    joined(tmp_path, 0)
    assert len(next(node for node in graph.node if node.op_type == "LSTM").input) == 3


def test_a_resize_to_a_size_asks_its_input_for_the_batch(tmp_path: Path) -> None:
    text = """
        g (float[1,2,4,4] x) => (float[1,2,9,7] y) <int64[4] s = {1,2,9,7}>
        {y = Resize<mode="nearest">(x, , , s)}"""
    _, graph = dynamic(text, tmp_path)
    assert declared(graph) == [["batch", 2, 9, 7]]
    joined(tmp_path, 0)


@pytest.mark.parametrize("shape", ["1,1,8", "1,1,2,4"])
def test_a_sequence_of_one_step_is_not_taken_for_the_batch(shape: str, tmp_path: Path) -> None:
    text = f"""
        g (float[1,1,8] x) => (float[1,1,8] y)
        <int64[{shape.count(",") + 1}] s = {{{shape}}}, int64[3] t = {{1,1,8}}>
        {{a = Transpose<perm=[1,0,2]>(x) b = Reshape(a, s) c = Relu(b) d = Reshape(c, t)
         y = Transpose<perm=[1,0,2]>(d)}}"""
    _, graph = dynamic(text, tmp_path)
    assert declared(graph) == [["batch", 1, 8]]
    joined(tmp_path, 0)


def test_a_shape_that_leaves_the_batch_open_is_unchanged(tmp_path: Path) -> None:
    text = "g (float[2,3,4] x) => (float[2,12] y) <int64[2] s = {-1,12}> {y = Reshape(x, s)}"
    trace, _ = dynamic(text, tmp_path)
    assert trace.notes[0] == "batch 2 is now dynamic"


def test_axes_that_are_1_long_are_removed_by_number(tmp_path: Path) -> None:
    """At a batch of 1 the batch's would be one of them."""
    _, graph = dynamic("g (float[2,3,1] x) => (float[2,3] y) {y = Squeeze(x)}", tmp_path)
    assert declared(graph) == [["batch", 3]]


@pytest.mark.parametrize("equation", ["...ij,...kj->...ik", "hij,bhkj->bhik", "...ij,...kj"])
def test_an_einsum_as_pytorch_exports_it_keeps_the_batch(equation: str, tmp_path: Path) -> None:
    left = "x" if equation.startswith("...") else "w"
    text = f"""
        # w: float[3,4,5]
        g (float[2,3,4,5] x) => (float[2,3,4,4] y) {{y = Einsum<equation="{equation}">({left}, x)}}"""
    _, graph = dynamic(text, tmp_path)
    assert declared(graph) == [["batch", 3, 4, 4]]
    joined(tmp_path, 0)


def test_an_expand_to_fewer_axes_than_its_input_has_keeps_the_batch(tmp_path: Path) -> None:
    text = """
        g (float[2,3,1] x) => (float[3,2,4] y) <int64[1] s = {4}>
        {t = Transpose<perm=[1,0,2]>(x) y = Expand(t, s)}"""
    _, graph = dynamic(text, tmp_path)
    assert declared(graph) == [[3, "batch", 4]]
    joined(tmp_path, 1)


def test_what_is_known_of_outputs_is_declared_without_a_check_too(tmp_path: Path) -> None:
    text = """
        g (float[2,4,12] x) => (float[4,2,12] y) <int64[3] s = {4,2,12}>
        {t = Transpose<perm=[1,0,2]>(x) y = Reshape(t, s)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", dynamic_batch=True, check=False)
    assert declared(onnx.load(tmp_path / "out.onnx").graph) == [[4, "batch", 12]]


# ── outputs ─────────────────────────────────────────────────────────────────────────────────────────────


def test_an_output_whose_batch_is_another_axis_is_declared_so(tmp_path: Path) -> None:
    text = """
        g (float[1,4] x) => (float[2,1,4] y) <int64[1] z = {0}>
        {a = Unsqueeze(x, z) b = Neg(a) y = Concat<axis=0>(a, b)}"""
    trace, graph = dynamic(text, tmp_path)
    assert declared(graph) == [[2, "batch", 4]]
    assert any("not their first axis: 'y' along axis 1" in note for note in trace.notes)
    joined(tmp_path, 1)


def test_several_rows_a_sample_are_declared_as_unknown(tmp_path: Path) -> None:
    text = "g (float[2,6] x) => (float[4,3] y) <int64[2] s = {4,3}> {y = Reshape(x, s)}"
    _, graph = dynamic(text, tmp_path)
    assert declared(graph) == [[0, 3]]
    assert not graph.output[0].type.tensor_type.shape.dim[0].HasField("dim_value")
    joined(tmp_path, 0)


def test_an_output_that_does_not_depend_on_the_batch_keeps_its_shape(tmp_path: Path) -> None:
    text = "# w: float[2,4]\ng (float[2,4] x) => (float[2,4] y, float[2,4] c) {y = Relu(x) c = Neg(w)}"
    _, graph = dynamic(text, tmp_path)
    assert declared(graph) == [["batch", 4], [2, 4]]


def refused(text: str, folder: Path, opset: int = 17) -> str:
    """What is said: without the check too, and no file is left."""
    onnx.save(model(text, opset), folder / "in.onnx")
    with pytest.raises(FixedBatchError) as caught:
        rewrite_model(folder / "in.onnx", folder / "out.onnx", target="10", dynamic_batch=True, check=False)
    assert not (folder / "out.onnx").exists()
    return str(caught.value)


_MIXES = {
    "ReduceMax": "m = ReduceMax<keepdims=0>(x) c = Greater(m, one) d = Mul(x, small) y = Where(c, d, x)",
    "ReduceMax over axis 0": "m = ReduceMax<axes=[-2]>(x) y = Sub(x, m)",
    "ReduceSum over all": "m = ReduceSum(x) y = Sub(x, m)",
    "CumSum": "y = CumSum(x, first)",
    "TopK": "y, i = TopK<axis=0>(x, k)",
    "ArgMax": "i = ArgMax(x) f = Cast<to=1>(i) y = Add(x, f)",
    "Softmax": "y = Softmax<axis=0>(x)",
    "LpNormalization": "y = LpNormalization<axis=0>(x)",
    "LayerNormalization": "y = LayerNormalization<axis=0>(x, w)",
    "MeanVarianceNormalization": "y = MeanVarianceNormalization<axes=[0]>(x)",
    "DynamicQuantizeLinear": "q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)",
    "NonZero": "n = NonZero(x) s = Shape(n) f = Cast<to=1>(s) m = ReduceMax(f) y = Mul(x, m)",
    "Unique": "u = Unique(x) s = Size(u) f = Cast<to=1>(s) y = Mul(x, f)",
    "Compress": "b = Greater(x, one) c = Reshape(b, flat) u = Compress(x, c) s = Size(u) f = Cast<to=1>(s) y = Mul(x, f)",
    "MatMul": "t = Transpose<perm=[1,0]>(x) a = MatMul(t, x) m = ReduceMax<keepdims=0>(a) y = Mul(x, m)",
    "Gemm": "a = Gemm<transA=1>(x, x) m = ReduceMax<keepdims=0>(a) y = Mul(x, m)",
    "Einsum": "m = Einsum<equation=\"bc->\">(x) y = Mul(x, m)",
    "Einsum of all with all": "m = Einsum<equation=\"ac,bc->ab\">(x, x) y = MatMul(m, x)",
    "GlobalMaxPool": "t = Transpose<perm=[1,0]>(x) u = Unsqueeze(t, k) a = GlobalMaxPool(u) m = ReduceMax<keepdims=0>(a) y = Mul(x, m)",
    "Conv": "t = Transpose<perm=[1,0]>(x) u = Unsqueeze(t, zero) a = Conv<pads=[1,1]>(u, v) b = Squeeze(a, zero) y = Transpose<perm=[1,0]>(b)",
    "BatchNormalization": "y, a, b = BatchNormalization<training_mode=1>(x, w, w, w, w)",
    "GatherElements": "f = Cast<to=7>(x) c = Clip(f, first, first) y = GatherElements<axis=0>(x, c)",
    "Gather by samples": "i = ArgMax<axis=1,keepdims=0>(x) y = Gather(x, i)",
    "ScatterND": "y = ScatterND(x, place, row)",
    "Size": "s = Size(x) f = Cast<to=1>(s) y = Mul(x, f)",
    "RandomNormalLike": "r = RandomNormalLike(x) y = Add(x, r)",
    "Loop": "m = ReduceMax<axes=[1],keepdims=0>(x) b = Greater(m, one) y = Loop(last, b, x) <body = l (int64 i, bool d, float[1,4] e) => (bool f, float[1,4] h) {f = Identity(d) h = Neg(e)}>",
    "If": "m = ReduceMax<axes=[1],keepdims=0>(x) b = Greater(m, one) y = If(b) <then_branch = t () => (float[1,4] p) {p = Neg(x)}, else_branch = e () => (float[1,4] q) {q = Abs(x)}>",
    "Scan": "y, z = Scan<num_scan_inputs=1, body = l (float[4] s, float[4] e) => (float[4] h, float[4] o) {h = Add(s, e) o = Identity(h)}>(w, x)",
    "rows of a constant": "b = Expand(small, three) m = ReduceSum(b) t = Add(x, b) y = Mul(t, m)",
}  # fmt: skip


@pytest.mark.parametrize("body", _MIXES.values(), ids=_MIXES)
def test_a_node_that_is_not_known_to_keep_samples_apart_is_refused_by_name(body: str, tmp_path: Path) -> None:
    """A check with random samples would miss some: their largest value is above 1 in every batch."""
    text = f"""
        # w: float[4]
        # v: float[4,4,3]
        # row: float[1,4]
        g (float[1,4] x) => (float y)
        <float one = {{1.0}}, float small = {{0.004}}, int64 first = {{0}}, int64 last = {{1}}, int64[1] k = {{1}},
         int64[1] zero = {{0}}, int64[1] flat = {{-1}}, int64[1,1] place = {{0}}, int64[2] three = {{3,4}}> {{{body}}}"""
    assert "node '" in refused(text, tmp_path)


def test_a_node_of_another_domain_is_refused_by_name(tmp_path: Path) -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("FastGelu", ["x"], ["y"], "mine", domain="com.microsoft")],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, [1, 4])],
        [onnx.helper.make_tensor_value_info("y", 1, [1, 4])],
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "in.onnx")
    with pytest.raises(FixedBatchError, match=r"'mine' \(FastGelu\)"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", dynamic_batch=True)


@pytest.mark.parametrize(
    "body",
    ["y = Softmax(x)", "g = LessOrEqual(x, half) y = Where(g, x, half)", "m = ReduceMax<axes=[1]>(x) y = Sub(x, m)", "y = CumSum(x, last)", "i = ArgMax<axis=1>(x) f = Cast<to=1>(i) y = Add(x, f)"],
)  # fmt: skip
def test_a_node_that_works_within_samples_is_none_of_these(body: str, tmp_path: Path) -> None:
    text = f"g (float[1,4] x) => (float[1,4] y) <int64 last = {{1}}, float half = {{0.5}}> {{{body}}}"
    _, graph = dynamic(text, tmp_path)
    assert declared(graph) == [["batch", 4]]


_COUNTS_ROWS = {
    "Slice": "y = Slice(x, zero, two, zero)",
    "Slice to a row far away": "y = Slice(x, zero, thousand, zero)",
    "Slice from the end": "t = Transpose<perm=[1,0]>(x) u = Slice(t, rest, far, one) y = Transpose<perm=[1,0]>(u)",
    "Gather": "y = Gather<axis=-2>(x, zero)",
    "Split": "a, b = Split<axis=0>(d, ones) y = Relu(a)",
    "Pad": "y = Pad(x, below)",
}


@pytest.mark.parametrize("body", _COUNTS_ROWS.values(), ids=_COUNTS_ROWS)
def test_a_node_that_counts_rows_is_refused_by_name(body: str, tmp_path: Path) -> None:
    text = f"""
        g (float[1,4] x) => (float[B,4] y) <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}},
        int64[1] thousand = {{1000}}, int64[1] rest = {{-1}}, int64[1] far = {{9223372036854775807}},
        int64[2] ones = {{1,1}}, int64[4] below = {{0,0,1,0}}> {{{body}}}"""
    text = text.replace("float[1,4] x", "float[2,4] d, float[2,4] x") if "Split" in body else text
    assert "batch" in refused(text, tmp_path).partition("→")[0]


_COUNTS_SAMPLES = (
    "n = Shape<start=0,end=1>(x) f = Cast<to=1>(n) y = Mul(x, f)",
    "n = Shape<start=0,end=1>(x) l = Less(n, ten) f = Cast<to=1>(l) y = Mul(x, f)",
    "s = Shape(x) n = Gather(s, zero) r = Range(zero, n, one) f = Cast<to=1>(r) m = ReduceMax(f) y = Add(x, m)",
    "n = Shape(x) f = Cast<to=1>(n) m = ReduceMax(f) y = Mul(x, m)",
)


@pytest.mark.parametrize("shape", ["2,4", "2,width"])
@pytest.mark.parametrize("body", _COUNTS_SAMPLES)
def test_what_is_computed_of_the_number_of_samples_stays_what_it_was(
    body: str, shape: str, tmp_path: Path
) -> None:
    text = f"g (float[{shape}] x) => (float[{shape}] y) <int64 zero = {{0}}, int64 one = {{1}}, int64[1] ten = {{10}}> {{{body}}}"
    dynamic(text, tmp_path)
    fixed, made = (
        onnxruntime.InferenceSession(tmp_path / name, providers=["CPUExecutionProvider"])
        for name in ("in.onnx", "out.onnx")
    )
    given = np.arange(24, dtype=np.float32).reshape(6, 4)
    wanted = np.concatenate([fixed.run(None, {"x": part})[0] for part in np.split(given, 3)])
    np.testing.assert_allclose(made.run(None, {"x": given})[0], wanted)


def test_rows_that_belong_to_no_single_sample_are_refused(tmp_path: Path) -> None:
    torn = "a = Reshape(x, s) y = Relu(a)"
    refused(f"g (float[2,6] x) => (float[3,4] y) <int64[2] s = {{-1,4}}> {{{torn}}}", tmp_path)
    interleaved = "a = Transpose(x) y = Reshape(a, s)"
    refused(f"g (float[2,6] x) => (float[12] y) <int64[1] s = {{-1}}> {{{interleaved}}}", tmp_path)


@pytest.mark.parametrize(
    ("op", "body"),
    [
        ("Softmax", "y = Softmax<axis=0>(x)"),
        ("CumSum", "c = Greater(x, large) f = Cast<to=1>(c) s = CumSum(f, first) d = Greater(s, zero) y = Where(d, small, x)"),
    ],
    ids=["any samples", "huge samples alone"],
)  # fmt: skip
def test_the_check_finds_what_a_wrong_rule_lets_through(
    op: str, body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, op, RULES["Relu"])
    text = f"""g (float[2,4] x) => (float[2,4] y)
        <float large = {{50.0}}, float zero = {{0.0}}, float small = {{0.0}}, int64 first = {{0}}> {{{body}}}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    with pytest.raises(FixedBatchError, match="differs"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", dynamic_batch=True)


@pytest.mark.parametrize(("batch", "run"), [(1, ""), (8, "a batch of 1 and ")])
def test_it_is_told_at_which_batches_a_model_was_run(batch: int, run: str, tmp_path: Path) -> None:
    trace, _ = dynamic(f"g (float[{batch},4] x) => (float[{batch},4] y) {{y = Relu(x)}}", tmp_path)
    beside = "and beside samples of huge values and of NaN"
    assert f"checked at {run}twice the old batch, {beside}" in trace.notes


def test_a_slice_of_the_whole_batch_and_one_of_another_axis_stay(tmp_path: Path) -> None:
    text = """
        g (float[1,4] x) => (float[1,2] y)
        <int64[2] from = {0,1}, int64[2] to = {9223372036854775807,3}> {a = Slice(x, from, to) y = Relu(a)}"""
    dynamic(text, tmp_path)
    joined(tmp_path, 0)


def test_another_axis_that_is_called_batch_gets_another_name(tmp_path: Path) -> None:
    _, graph = dynamic("g (float[2,batch] x) => (float[2,batch] y) {y = Relu(x)}", tmp_path)
    axes = [
        [axis.dim_param for axis in item.type.tensor_type.shape.dim] for item in (*graph.input, *graph.output)
    ]
    assert axes == [["batch", "batch_1"]] * 2


@pytest.mark.parametrize("body", ["e = Expand(c, s)", "r = Reshape(s, f) t = Gather(r, h) e = Expand(c, t)"])
def test_what_is_computed_of_a_shape_alone_keeps_the_old_number_of_rows(body: str, tmp_path: Path) -> None:
    text = f"""
        g (float[2,seq] x) => (float[2,seq] y, float[2,1] z)
        <float c = {{2.0}}, int64[1] f = {{-1}}, int64[2] h = {{0,1}}, int64[1] i = {{0}}>
        {{s = Shape(x) {body} m = ReduceMean<axes=[1]>(e) r0 = ReduceSum(m, i) y = Add(x, r0) z = Identity(m)}}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", dynamic_batch=True, check=False)
    made = onnxruntime.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])
    y, z = made.run(None, {"x": np.ones((3, 5), np.float32)})
    assert (z.shape, y.tolist()) == ((2, 1), np.full((3, 5), 5.0).tolist())


def test_the_remedies_of_build_and_of_this_do_not_point_at_each_other(tmp_path: Path) -> None:
    """The windows of one recording are this model's batch; its data decide how many samples it has."""
    text = "g (float[1,8] x) => (float[1,4] y) <int64[2] s = {2,4}> {w = Reshape(x, s) y = ReduceMax<axes=[0]>(w)}"
    onnx.save(model(text), tmp_path / "in.onnx")
    with pytest.raises(FixedBatchError) as build:
        trtopt.build(tmp_path / "in.onnx", tmp_path / "out", batch=2, backend="onnxruntime")
    with pytest.raises(FixedBatchError) as rewrite:
        trtopt.rewrite(tmp_path / "in.onnx", tmp_path / "out.onnx", dynamic_batch=True)
    assert "--dynamic-batch" in build.value.remedy
    assert "batch=1" in rewrite.value.remedy
    assert "--dynamic-batch" not in rewrite.value.remedy
    trtopt.build(tmp_path / "in.onnx", tmp_path / "out", batch=1, backend="onnxruntime")


def test_a_scalar_input_serves_all_samples(tmp_path: Path) -> None:
    _, graph = dynamic("g (float[1,4] x, float s) => (float[1,4] y) {y = Mul(x, s)}", tmp_path)
    assert declared(graph) == [["batch", 4]]


# ── random graphs ───────────────────────────────────────────────────────────────────────────────────────

_STEPS = (
    "Relu(I)", "Transpose<perm=P>(I)", "Softmax<axis=A>(I)", "ReduceMax<axes=[A],keepdims=K>(I)", "Add(I, J)",
    "Reshape(I, half)", "Reshape(I, rows)", "Reshape(I, flat)", "Flatten<axis=A>(I)", "MatMul(I, J)", "CumSum(I, a)",
    "Concat<axis=A>(I, J)", "Gather<axis=A>(I, a)", "Unsqueeze(I, b)", "Squeeze(I)", "GlobalMaxPool(I)", "Size(I)",
    "LpNormalization<axis=A>(I)", "Expand(I, four)", "Slice(I, b, two)", "TopK<axis=A>(I, c)", "Shape(I)",
    'Einsum<equation="abc,abd->acd">(I, J)', 'Einsum<equation="abc->cab">(I)', "Cast<to=1>(I)", "Gather(I, b)",
    "Pad(I, pads)", "Tile(I, twice)", "ArgMin<axis=A,keepdims=K>(I)", "LayerNormalization<axis=A>(I, one)", "Split<axis=A>(I)",
    "BatchNormalization(I, m, m, m, m)", "QuantizeLinear<axis=A>(I, m)", "DequantizeLinear<axis=A>(I, m)", "Slice(I, b, far)",
)  # fmt: skip


@st.composite
def _bodies(draw: st.DrawFn) -> str:
    names, body = ["x"], []
    for count in range(draw(st.integers(1, 5))):
        step = draw(st.sampled_from(_STEPS)).replace("=A", f"={draw(st.integers(0, 2))}")
        step = step.replace("=[A]", f"=[{draw(st.integers(0, 2))}]").replace(
            "=K", f"={draw(st.integers(0, 1))}"
        )
        step = step.replace("=P", f"={draw(st.permutations([0, 1, 2]))}")
        step = step.replace("I,", f"{draw(st.sampled_from(names[-2:]))},").replace("I)", f"{names[-1]})")
        names.append(f"t{count}")
        body.append(
            f"{names[-1]}{', u' + str(count) if step.startswith(('TopK', 'Split')) else ''} = {step.replace('J)', names[-2:][0] + ')')}"
        )
    return f"{' '.join(body)} y = Cast<to=1>({names[-1]})"


def _keeps_samples_apart(body: str, batch: int, folder: Path) -> bool:
    """Hold a graph that is accepted to its samples, also beside one of huge values; False if it cannot be."""
    text = f"""
        g (float[{batch},2,3] x) => (float y) <int64 a = {{1}}, int64[1] b = {{0}}, int64[1] c = {{1}}, int64[1] two = {{2}},
        int64[1] flat = {{-1}}, int64[2] half = {{-1,3}}, int64[2] rows = {{{batch},6}}, int64[4] four = {{1,{batch},2,3}},
        int64[1] far = {{9223372036854775807}}, int64[6] pads = {{0,0,1,0,1,0}}, int64[3] twice = {{1,2,1}}, float[2] m = {{0.5,2.0}},
        float[1] one = {{3.0}}>
        {{{body}}}"""
    proto = model(text)
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(proto, folder / "in.onnx")
    parts = np.random.default_rng(7).standard_normal((3, batch, 2, 3)).astype(np.float32)
    parts[1] *= 1e4
    try:
        fixed = onnxruntime.InferenceSession(folder / "in.onnx", providers=["CPUExecutionProvider"])
        wanted = [fixed.run(None, {"x": part})[0] for part in parts]
    except Exception:  # noqa: BLE001  (of ONNX Runtime's own types)
        return False
    try:
        rewrite_model(folder / "in.onnx", folder / "out.onnx", target="10", dynamic_batch=True, check=False)
    except FixedBatchError:
        return True
    made = onnxruntime.InferenceSession(folder / "out.onnx", providers=["CPUExecutionProvider"])
    found = made.run(None, {"x": np.concatenate(parts)})[0]
    axes = [axis for axis in range(found.ndim) if found.shape[axis] != wanted[0].shape[axis]]
    pieces = np.split(found, 3, axes[0]) if axes else [found] * 3
    for piece, part in zip(pieces, wanted, strict=True):
        np.testing.assert_allclose(piece, part, rtol=1e-4, atol=1e-4 * np.abs(part).max(initial=0))
    alone = made.run(None, {"x": parts[0][:1]})[0]
    rows = alone.shape[axes[0]] if axes else 0
    np.testing.assert_allclose(
        alone, pieces[0].take(range(rows), axes[0]) if axes else pieces[0], rtol=1e-4, atol=1e-4
    )
    return True


@settings(suppress_health_check=list(HealthCheck))
@given(body=_bodies(), batch=st.sampled_from([1, 2]))
def test_any_graph_that_is_accepted_keeps_samples_apart(body: str, batch: int, tmp_path: Path) -> None:
    assume(_keeps_samples_apart(body, batch, tmp_path))


_ALONG_AXES = [step for step in _STEPS if "=A" in step or "=[A]" in step]


@pytest.mark.parametrize(
    "step", few("Pad(I, pads)", "Tile(I, twice)", "Slice(I, b, far)", *_ALONG_AXES, of=_STEPS)
)
def test_an_operator_keeps_samples_apart_wherever_the_batch_lies(step: str, tmp_path: Path) -> None:
    """Along each of its axes, with the batch at each of its input's."""
    node = step.replace("=P", "=[2,0,1]").replace("I,", "i,").replace("I)", "i)").replace("J)", "i)")
    outputs = "t, u" if step.startswith(("TopK", "Split")) else "t"
    axes, kept = range(3 if step in _ALONG_AXES else 1), range(2 if "=K" in step else 1)
    for perm, axis, keeps in product(("0,1,2", "1,0,2", "1,2,0"), axes, kept):
        worked = node.replace("=A", f"={axis}").replace("=[A]", f"=[{axis}]").replace("=K", f"={keeps}")
        body = f"i = Transpose<perm=[{perm}]>(x) {outputs} = {worked} y = Cast<to=1>(t)"
        _keeps_samples_apart(body, 2, tmp_path)
