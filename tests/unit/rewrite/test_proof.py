"""The proof: a rule that changes the function is found, undone and named; one that raises stops all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.rewrite_graphs import model
from trtopt.errors import FixedBatchError, ModelError, UsageError
from trtopt.rewrite import api, rewrite_model
from trtopt.rewrite.driver import RuleFailed
from trtopt.rewrite.equivalence import Unrunnable, error_between
from trtopt.rewrite.rule import Match, Rule, always
from trtopt.rewrite.rules import clamp_chain, erase_identity, fold_scale
from trtopt.rewrite.scope import Scope

_TEXT = "g (float[N,4] x) => (float[N,4] y) {a = Relu(x) b = Relu(a) c = Identity(b) y = Abs(c)}"


def _find_abs(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Abs"):
        yield Match(node)


def _negate(scope: Scope, match: Match) -> None:
    scope.replace(match.node, "Neg", list(match.node.inputs))


def _raise(scope: Scope, match: Match) -> None:
    raise ZeroDivisionError("oh")


_LIE = Rule("lie", "B", "", _find_abs, always, _negate)
_FAIL = Rule("fail", "B", "", _find_abs, always, _raise)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_rule_that_changes_the_outputs_is_bisected_undone_and_named(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [erase_identity.RULE, clamp_chain.RULE]
    rules.insert(place, _LIE)
    monkeypatch.setattr(api, "RULES", tuple(rules))
    onnx.save(model(_TEXT), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert [(item.rule, item.nodes) for item in trace.undone] == [("lie", ("Abs:y",))]
    assert trace.counts == {"erase-identity": 1, "clamp-chain": 1}
    assert [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node] == ["Relu", "Abs"]


def test_bit_exact_rules_are_held_to_equality_even_beside_looser_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nudge(scope: Scope, match: Match) -> None:
        scope.replace(match.node, "Mul", [match.node.inputs[0], scope.constant(np.float32([1.00001]), "c")])

    lie = Rule("nudge", "B", "", _find_abs, always, nudge)
    monkeypatch.setattr(api, "RULES", (lie, fold_scale.RULE))
    text = """
        # w: float[4,2,1,1]
        g (float[N,2,4,4] x) => (float[N,4,4,4] y) <float t = {3.0}>
        {a = Conv(x, w) b = Mul(a, t) c = Relu(b) y = Abs(c)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert [item.rule for item in trace.undone] == ["nudge"]
    assert trace.counts == {"fold-scale": 1}


def test_a_rule_that_raises_stops_the_rewrite_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "RULES", (erase_identity.RULE, _FAIL))
    onnx.save(model(_TEXT), tmp_path / "in.onnx")
    with pytest.raises(RuleFailed, match="'fail' failed at 'Abs:y': ZeroDivisionError: oh"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert not (tmp_path / "out.onnx").exists()


def test_keep_going_leaves_out_a_rule_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "RULES", (erase_identity.RULE, _FAIL))
    onnx.save(model(_TEXT), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", keep_going=True)
    assert [(item.rule, item.nodes) for item in trace.undone] == [("fail", ("Abs:y",))]
    assert trace.counts == {"erase-identity": 1}


def test_unknown_rules_and_targets_are_usage_errors(tmp_path: Path) -> None:
    onnx.save(model(_TEXT), tmp_path / "in.onnx")
    with pytest.raises(UsageError, match="no rule 'nonsense'"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", skip=["nonsense"])
    with pytest.raises(UsageError, match="no rules are named"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", rules=[])
    with pytest.raises(UsageError, match="unknown target '9'"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="9")


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, 1.0], 0.5),
        ([np.nan, 2.0], [np.nan, 2.0], 0.0),
        ([np.nan, 2.0], [2.0, 2.0], np.inf),
        ([np.inf, 2.0], [-np.inf, 2.0], np.inf),
        ([1.0, 2.0], [1.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_the_error_is_relative_and_strict_about_what_is_not_finite(
    first: list[float], second: list[float], error: float
) -> None:
    assert error_between(np.float32(first), np.float32(second)) == error


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
        <int64[2] s = {2,24}, int64[3] t = {2,4,6}, int64 n = {2}, bool k = {1}, float zero = {0.0}>
        {a = Loop(n, k, x) <body = b (int64 i, bool d, float[2,4,6] e) => (bool f, float[2,4,6] h)
            <float[2,24] p>
            {f = Identity(d) p = Reshape(e, s) q = Relu(p) h = Reshape(q, t)}>
         y = Reshape(a, s)
         total = ReduceSum<keepdims=0>(x)
         c = Less(total, zero)
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
    with pytest.raises(FixedBatchError, match="twice the batch") as caught:
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", dynamic_batch=True)
    assert caught.value.exit_code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_a_batch_that_is_dynamic_already_is_said_so(tmp_path: Path) -> None:
    onnx.save(model(_TEXT), tmp_path / "in.onnx")
    with pytest.raises(FixedBatchError, match="already"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", dynamic_batch=True)


def test_a_model_that_knows_no_long_axes_is_proved_on_shorter_ones(tmp_path: Path) -> None:
    text = """
        # w: float[8,4]
        g (float[S,4] x) => (float[S,4] y) <int64[1] z = {0}>
        {s = Shape<end=1>(x) p = Slice(w, z, s, z) a = Relu(x) b = Relu(a) y = Add(b, p)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert trace.counts["clamp-chain"] == 1
    assert {item.feed for item in trace.checked} == {"seed 0, small (1x4)", "seed 0, large (3x4)"}


def test_a_model_that_no_length_fits_is_named_and_leaves_no_file(tmp_path: Path) -> None:
    text = """
        # w: float[11,4]
        g (float[B,S] x) => (float[B,S] y) {a = Relu(x) b = Relu(a) y = MatMul(b, w)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    with pytest.raises(Unrunnable, match="MatMul"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_where_no_rule_applies_nothing_is_run_or_written_unless_wanted(tmp_path: Path) -> None:
    onnx.save(model("g (float[N,4] x) => (float[N,4] y) {y = Relu(x)}"), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", write_unchanged=False)
    assert (trace.applied, trace.checked) == ((), ())
    assert "nothing was run" in trace.notes[0]
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("dynamic_batch", [False, True])
def test_an_output_that_is_no_tensor_is_named(dynamic_batch: bool, tmp_path: Path) -> None:
    text = """
        g (float[2,4] x) => (seq(float[2,4]) s, float[2,4] y)
        {a = Relu(x) b = Relu(a) s = SequenceConstruct(b) y = Neg(b)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    with pytest.raises(ModelError, match="output 's' is no tensor but a sequence"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", dynamic_batch=dynamic_batch)
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", check=False)
    assert trace.counts == {"clamp-chain": 1}
    onnx.checker.check_model(onnx.load(tmp_path / "out.onnx"), full_check=True)


@pytest.mark.parametrize("kind", ["INT4", "FLOAT8E4M3FN"])
def test_large_weights_of_types_that_numpy_lacks_take_part_in_the_proof(kind: str, tmp_path: Path) -> None:
    code = getattr(onnx.TensorProto, kind)
    text = """
        g (float[N,128] x) => (float[N,128] y) <float s = {0.5}>
        {a = Relu(x) b = Relu(a) w = DequantizeLinear(q, s) y = MatMul(b, w)}"""
    made = model(text, 21)
    values = np.random.default_rng(0).integers(0, 60, (128, 128 // (2 if kind == "INT4" else 1)), np.uint8)
    weight = onnx.TensorProto(name="q", data_type=code, dims=[128, 128], raw_data=values.tobytes())
    made.graph.initializer.append(weight)
    onnx.save(made, tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert (trace.counts, trace.undone) == ({"clamp-chain": 1}, ())
    assert all(item.error == 0 for item in trace.checked)
    kept = {item.name: item.raw_data for item in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert kept["q"] == values.tobytes()
