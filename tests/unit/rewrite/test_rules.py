"""Every rule: it fires as often as it should, each guard declines with its reason, and the function stays."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.rewrite_graphs import DECLINES, FIRES, Case, model
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.rewrite_trace import RewriteTrace
from trtopt.rewrite.rules import RULES


def _rewrite(case: Case, folder: Path) -> RewriteTrace:
    onnx.save(model(case.text, case.opset), folder / "in.onnx")
    return rewrite_model(folder / "in.onnx", folder / "out.onnx", target=case.target, rules=[case.rule])


@pytest.mark.parametrize("case", FIRES, ids=lambda case: case.id)
def test_a_rule_fires_once_and_keeps_the_function(case: Case, tmp_path: Path) -> None:
    trace = _rewrite(case, tmp_path)
    assert trace.undone == ()
    assert trace.counts == {case.rule: case.count}
    assert trace.checked
    assert all(item.ok for item in trace.checked)
    onnx.checker.check_model(onnx.load(tmp_path / "out.onnx"), full_check=True)
    before, after = onnx.load(tmp_path / "in.onnx").graph, onnx.load(tmp_path / "out.onnx").graph
    assert [item.name for item in before.input] == [item.name for item in after.input]
    assert [item.name for item in before.output] == [item.name for item in after.output]
    out, again = tmp_path / "out.onnx", tmp_path / "again.onnx"
    rewrite_model(out, again, target=case.target, rules=[case.rule], check=False)
    assert out.read_bytes() == again.read_bytes()


@pytest.mark.parametrize("case", DECLINES, ids=lambda case: case.id)
def test_a_guard_declines_and_names_the_reason(case: Case, tmp_path: Path) -> None:
    onnx.save(model(case.text, case.opset), tmp_path / "in.onnx")
    trace = rewrite_model(
        tmp_path / "in.onnx", tmp_path / "out.onnx", target=case.target, rules=[case.rule], check=False
    )
    assert trace.applied == ()
    assert any(case.reason in item.reason for item in trace.declined), trace.declined


@pytest.mark.parametrize("case", [*FIRES, *DECLINES], ids=lambda case: case.id)
def test_all_default_rules_together_keep_the_function(case: Case, tmp_path: Path) -> None:
    onnx.save(model(case.text, case.opset), tmp_path / "in.onnx")
    runs = case.name not in (
        "training",
        "an unknown length",
        "a dropout of old",
        "an index out of range",
    )
    trace = rewrite_model(
        tmp_path / "in.onnx", tmp_path / "out.onnx", target=case.target, clean=True, check=runs
    )
    assert trace.undone == ()
    more = trace.counts.get("plain-shape", 0) + trace.counts.get(
        "plain-integers", 0
    )  # about being read at all
    assert trace.nodes_after <= trace.nodes_before + more


@pytest.mark.parametrize(("target", "times"), [("8.6", 0), ("rtx", 0), ("10", 1), ("11", 1)])
def test_cleaning_applies_a_rule_for_the_targets_that_it_suits(
    target: str, times: int, tmp_path: Path
) -> None:
    graph = next(case for case in FIRES if case.id == "attention-scale: before the mask")
    onnx.save(model(graph.text, graph.opset), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target=target, clean=True)
    assert trace.counts.get("attention-scale", 0) == times


def test_a_division_by_zero_is_no_ones_pattern(tmp_path: Path) -> None:
    text = "g (float[N,8] x) => (float[N,8] y) <float z = {0.0}> {y = Div(x, z)}"
    onnx.save(model(text, 20), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", clean=True, check=False)
    assert trace.applied == ()


def test_every_rule_has_a_case_that_fires() -> None:
    assert {rule.name for rule in RULES} == {case.rule for case in FIRES}
    assert len({rule.name for rule in RULES}) == len(RULES)


_DIVIDED = """
    g (float[N,8] x) => (float[N,8] y)
    <float three = {3.0}, float zero = {0.0}, float six = {6.0}, float d = {%s}>
    {a = Add(x, three) b = Clip(a, zero, six) y = Div(b, d)}"""
_TAKEN_FIRST = """
    g (float[N,8] x, float[N,8] z) => (float[N,8] y)
    <float three = {3.0}, float zero = {0.0}, float six = {6.0}, float d = {%s}>
    {a = Add(x, three) b = Clip(a, zero, six) c = Div(z, d) y = Mul(c, b)}"""
_NEGATED = """
    g (float[N,8] x, float[N,8] z) => (float[N,8] y) <float one = {1.0}, float m = {%s}>
    {a = Mul(x, m) b = Exp(a) c = Add(b, one) y = Div(%s, c)}"""


@pytest.mark.parametrize(
    ("rule", "text", "times"),
    [
        ("hard-sigmoid", _DIVIDED % 6.0, 1),
        ("hard-sigmoid", _DIVIDED % 6.0003, 0),
        ("hard-sigmoid", _TAKEN_FIRST % 6.0, 1),
        ("hard-sigmoid", _TAKEN_FIRST % 5.0, 0),
        ("sigmoid", _NEGATED % (-1.0, "one"), 1),
        ("sigmoid", _NEGATED % (-1.00005, "one"), 0),
        ("sigmoid", _NEGATED % (-1.0, "x"), 1),
        ("sigmoid", _NEGATED % (-1.0, "z"), 0),
    ],
    ids=[
        *("a sixth", "no sixth", "a sixth of the other", "a fifth of the other"),
        *("a negation", "no negation", "over it x", "over it another"),
    ],
)
def test_a_factor_and_a_tensor_are_those_that_are_meant(
    rule: str, text: str, times: int, tmp_path: Path
) -> None:
    onnx.save(model(text, 20), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="11", rules=[rule])
    assert trace.undone == ()
    assert trace.counts.get(rule, 0) == times
