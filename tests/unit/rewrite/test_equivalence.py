"""The proof: a rule that changes the function is found, undone and named; one that raises stops all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.rewrite_graphs import model
from trtopt.errors import ModelError, UsageError
from trtopt.rewrite import rewrite as api
from trtopt.rewrite.equivalence import Unrunnable, error_between
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.rule import Match, Verdict, at, rule
from trtopt.rewrite.rules.cleaning import drop_dead, erase_arithmetic, erase_identity
from trtopt.rewrite.rules.convolution import fold_scale
from trtopt.rewrite.scope import Scope

_TEXT = """
    g (float[N,4] x) => (float[N,4] y) <float one = {1.0}>
    {a = Relu(x) b = Mul(a, one) c = Identity(b) y = Abs(c)}"""


@rule("", "B", "")
@at("Abs")
def lie(scope: Scope, node: Any) -> Verdict:
    return lambda: scope.replace(node, "Neg", list(node.inputs))


@rule("", "B", "")
@at("Abs")
def fail(scope: Scope, node: Any) -> Verdict:
    def apply() -> None:
        raise ZeroDivisionError("oh")

    return apply


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_rule_that_changes_the_outputs_is_bisected_undone_and_named(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [erase_identity, erase_arithmetic]
    rules.insert(place, lie)
    monkeypatch.setattr(api, "RULES", tuple(rules))
    onnx.save(model(_TEXT), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", clean=True)
    assert [(item.rule, item.nodes) for item in trace.undone] == [("lie", ("Abs:y",))]
    assert trace.counts == {"erase-identity": 1, "erase-arithmetic": 1}
    assert [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node] == ["Relu", "Abs"]


def test_a_rule_after_which_the_model_no_longer_runs_is_undone_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @rule("", "B", "")
    @at("Abs")
    def deny(scope: Scope, node: Any) -> Verdict:
        return lambda: scope.replace(node, "Not", list(node.inputs))  # takes booleans only

    monkeypatch.setattr(api, "RULES", (deny,))
    onnx.save(model(_TEXT), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", clean=True)
    assert [item.rule for item in trace.undone] == ["deny"]
    assert trace.counts == {}


def test_bit_exact_rules_are_held_to_equality_even_next_to_looser_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @rule("", "B", "")
    @at("Abs")
    def nudge(scope: Scope, node: Any) -> Verdict:
        more = scope.constant(np.float32([1.00001]), "c")
        return lambda: scope.replace(node, "Mul", [node.inputs[0], more])

    monkeypatch.setattr(api, "RULES", (nudge, fold_scale))
    text = """
        # w: float[4,2,1,1]
        g (float[N,2,4,4] x) => (float[N,4,4,4] y) <float t = {3.0}>
        {a = Conv(x, w) b = Mul(a, t) c = Relu(b) y = Abs(c)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", clean=True)
    assert [item.rule for item in trace.undone] == ["nudge"]
    assert trace.counts == {"fold-scale": 1}


def test_a_rule_that_raises_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "RULES", (erase_identity, fail))
    onnx.save(model(_TEXT), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", clean=True)
    assert [(item.rule, item.nodes) for item in trace.undone] == [("fail", ("Abs:y",))]
    assert "ZeroDivisionError: oh" in trace.undone[0].reason
    assert trace.counts == {"erase-identity": 1}


def test_a_rule_that_raises_is_named_with_the_node_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with one that another rule looked at before, nor the last that it looked at itself."""

    def break_off() -> None:
        raise ZeroDivisionError("oh")

    @rule("", "B", "")
    def search(scope: Scope) -> Iterator[Match]:
        break_off()
        yield from ()

    @rule("", "B", "")
    def first(scope: Scope) -> Iterator[Match]:
        earliest, *_ = scope.nodes()
        yield Match(earliest, break_off)

    onnx.save(model(_TEXT), tmp_path / "in.onnx")
    for wrong, node in ((search, "the search"), (first, "Relu:a")):
        monkeypatch.setattr(api, "RULES", (drop_dead, wrong))
        trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", clean=True)
        assert [(item.rule, item.nodes) for item in trace.undone] == [(wrong.name, (node,))]


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


@pytest.mark.parametrize("value", [1e-200, 1e200, 1e308])
def test_the_error_of_fp64_is_seen_at_any_magnitude(value: float) -> None:
    assert error_between(np.array([value]), np.array([-value])) > 1


def test_a_model_that_knows_no_long_axes_is_proved_on_shorter_ones(tmp_path: Path) -> None:
    text = """
        # w: float[8,4]
        g (float[S,4] x) => (float[S,4] y) <int64[1] z = {0}>
        {s = Shape<end=1>(x) p = Slice(w, z, s, z) a = Relu(x) b = Identity(a) y = Add(b, p)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert trace.counts["erase-identity"] == 1
    assert {item.feed for item in trace.checked} == {"seed 0, small (1x4)", "seed 0, large (3x4)"}


def test_a_model_that_no_length_fits_is_named_and_leaves_no_file(tmp_path: Path) -> None:
    text = """
        # w: float[11,4]
        g (float[B,S] x) => (float[B,S] y) {a = Relu(x) b = Identity(a) y = MatMul(b, w)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    with pytest.raises(Unrunnable, match="MatMul"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_data_of_the_users_verifies_a_model_that_no_random_length_fits(tmp_path: Path) -> None:
    text = """
        # w: float[11,4]
        g (float[B,S] x) => (float[B,S] y) {a = Relu(x) b = Identity(a) y = MatMul(b, w)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    np.savez(tmp_path / "real.npz", x=np.ones((2, 11), np.float32))
    trace = rewrite_model(
        tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", data=tmp_path / "real.npz"
    )
    assert ({item.feed for item in trace.checked}, trace.undone) == ({"real.npz"}, ())
    assert "checked on real.npz alone: the model runs on no random input" in trace.notes


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
        {a = Relu(x) b = Identity(a) s = SequenceConstruct(b) y = Neg(b)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    with pytest.raises(ModelError, match="output 's' is no tensor but a sequence"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", dynamic_batch=dynamic_batch)
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", check=False)
    assert trace.counts == {"erase-identity": 1}
    onnx.checker.check_model(onnx.load(tmp_path / "out.onnx"), full_check=True)


@pytest.mark.parametrize("kind", ["INT4", "FLOAT8E4M3FN"])
def test_large_weights_of_types_that_numpy_lacks_take_part_in_the_proof(kind: str, tmp_path: Path) -> None:
    code = getattr(onnx.TensorProto, kind)
    text = """
        g (float[N,128] x) => (float[N,128] y) <float s = {0.5}>
        {a = Relu(x) b = Identity(a) w = DequantizeLinear(q, s) y = MatMul(b, w)}"""
    made = model(text, 21)
    values = np.random.default_rng(0).integers(0, 60, (128, 128 // (2 if kind == "INT4" else 1)), np.uint8)
    weight = onnx.TensorProto(name="q", data_type=code, dims=[128, 128], raw_data=values.tobytes())
    made.graph.initializer.append(weight)
    onnx.save(made, tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert (trace.counts, trace.undone) == ({"erase-identity": 1}, ())
    assert all(item.error == 0 for item in trace.checked)
    kept = {item.name: item.raw_data for item in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert kept["q"] == values.tobytes()


_LOW_SCORES = """
    # w: float[8,4,3,3]
    g (float[N,4,16,16] x) => (float[N,8,14,14] y) <float t = {0.3}, float shift = {-14.0}>
    {a = Conv(x, w) b = Mul(a, t) c = Add(b, shift) y = Sigmoid(c)}"""
"""A detector that finds nothing: its scores are some 1e-6, and ONNX Runtime computes them as 0.5 + …."""


def test_the_rounding_of_a_sigmoid_near_zero_undoes_no_rule(tmp_path: Path) -> None:
    onnx.save(model(_LOW_SCORES), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert (trace.undone, trace.counts["fold-scale"]) == ((), 2)


def test_a_rule_that_changes_scores_near_zero_is_still_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @rule("", "N", "")
    @at("Add")
    def lie(scope: Scope, node: Any) -> Verdict | None:
        shift = scope.constant(np.float32([-13.0]), "other")
        change = partial(scope.replace, node, "Add", [node.inputs[0], shift])
        return change if node.inputs[1].name == "shift" else None

    monkeypatch.setattr(api, "RULES", (lie,))
    onnx.save(model(_LOW_SCORES), tmp_path / "in.onnx")
    assert (
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", clean=True).undone[0].rule
        == "lie"
    )
