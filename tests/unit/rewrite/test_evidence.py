"""What the catalogue knows of its rules stands in the files it names, and decides what builds apply."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

from tests.rewrite_graphs import FIRES, model
from trtopt.onnxio.model_file import load
from trtopt.onnxio.prepare import prepare
from trtopt.precision.placement.draft import PlacementOptions, Plan, View
from trtopt.precision.placement.place import place
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.rule import (
    AUDIT,
    AUDIT_RTX,
    Evidence,
    Rule,
    builds,
    faster,
    layers,
    quantizes,
)
from trtopt.rewrite.rules import RULES, build_rules, quantizing_rules
from trtopt.targets import target_names

ROOT = Path(__file__).parents[3]
_QUANTISES = {rule.name for rule in RULES if any(one.kind == "stage" for one in rule.evidence)}


def test_every_source_is_a_file_of_the_repository_or_an_address() -> None:
    for rule in RULES:
        for one in (found for target in target_names() for found in rule.known(target)):
            assert one.source.startswith("https://") or (ROOT / one.source).is_file(), (rule.name, one)


@pytest.mark.parametrize("source", [AUDIT, AUDIT_RTX])
def test_what_builds_only_with_a_rule_did_so_in_the_audit(source: str) -> None:
    pairs = json.loads((ROOT / source).read_text())["pairs"]
    needed = {pair["rule"] for pair in pairs if pair["verdict"] == "builds only after"}
    named = {
        rule.name for rule in RULES for one in rule.evidence if (one.kind, one.source) == ("builds", source)
    }
    assert named == needed


PADDED = """
    # w: float[8,3,3,3]
    g (float[n,3,8,8] x) => (float[n,8,8,8] y) <int64[1] two = {2}, int64[4] ends = {0,0,1,1}> {
        %s
        p = Concat<axis=0>(none, none, none, none, ends)
        q = Pad(x, p)
        y = Conv(q, w)
    }"""
ENABLED = {
    "fold-constants": PADDED % "none = Sub(two, two)",
    "fold-shapes": PADDED % "s = Shape(x)  c = Gather<axis=0>(s, two)  none = Sub(c, c)",
    "erase-identity": """
    # w: float[8,3,3,3]
    # s: float[8]
    # b: float[8]
    # m: float[8]
    # v: float[8]
    g (float[n,3,8,8] x) => (float[n,8,6,6] y) {
        a = Conv(x, w)
        i = Identity(a)
        y = BatchNormalization(i, s, b, m, v)
    }""",
    "inline-if": """
    # w: float[8,3,3,3]
    g (float[n,3,8,8] x) => (float[n,8,6,6] y) <bool c = {1}> {
        y = If (c) <
            then_branch = t () => (float[n,8,6,6] a) { a = Conv(x, w) },
            else_branch = e () => (float[n,8,6,6] b) { b = Conv(x, w) }>
    }""",
}
"""Graphs in which a rule enables another one, or the placement, that does the rest."""


def _plan(file: Path) -> Plan:
    return place(View(prepare(load(file)).proto), PlacementOptions("int8", (), ()))


def _quantised(plan: Plan) -> int:
    return sum(one.quantised and one.op != "Pad" for one in plan.decisions)


def _strangers(plan: Plan) -> int:
    """Nodes without a placement rule of their own, and Pads that Q/DQ part from their convolution."""
    unknown = ("there is no rule for", "it could not be folded")
    return sum(
        one.reason.startswith(unknown) or (one.quantised and one.op == "Pad") for one in plan.decisions
    )


def _helps(text: str, opset: int, folder: Path, without: Sequence[str], rules: Sequence[str]) -> bool:
    """Whether placement does more after `rules` than after those `without` one."""
    before, after, source = (folder / f"{name}.onnx" for name in ("before", "after", "source"))
    onnx.save(model(text, opset), source)
    if without:
        rewrite_model(source, before, target="10", rules=without, check=False)
    rewrite_model(source, after, target="10", rules=rules, check=False)
    first, second = _plan(before if without else source), _plan(after)
    if _quantised(second) > _quantised(first):
        return True
    return _quantised(first) > 0 and _strangers(second) < _strangers(first)


@pytest.mark.parametrize("name", sorted(_QUANTISES - ENABLED.keys()))
def test_placement_does_more_after_a_rule_that_quantising_needs(name: str, tmp_path: Path) -> None:
    cases = [case for case in FIRES if case.rule == name]
    assert any(_helps(case.text, case.opset, tmp_path, (), [name]) for case in cases)


@pytest.mark.parametrize("name", ENABLED)
def test_placement_does_more_by_what_a_rule_enables(name: str, tmp_path: Path) -> None:
    assert name in _QUANTISES
    rules = quantizing_rules("10")
    assert _helps(ENABLED[name], 17, tmp_path, [one for one in rules if one != name], rules)


@pytest.mark.parametrize("target", target_names())
def test_quantising_applies_what_builds_do_and_what_placement_needs(target: str) -> None:
    needed = {rule.name for rule in RULES if rule.name in _QUANTISES and target in rule.targets}
    assert set(quantizing_rules(target)) == needed | set(build_rules(target))
    assert "layer-norm" not in quantizing_rules(target)


def test_builds_apply_what_models_need_and_what_was_measured_faster() -> None:
    needed = (
        *("cast-like", "plain-shape", "drop-unused", "fold-bias", "fold-weights"),
        *("plain-integers", "tell-kernel"),
    )
    assert set(build_rules("8.6")) == {*needed, "softmax"}
    assert [build_rules(target) for target in ("10", "11", "rtx")] == [("drop-unused", "fold-bias")] * 3


@pytest.mark.parametrize(
    ("evidence", "earns"),
    [
        (builds("it does not import", ("8.6",)), ["8.6"]),
        (faster("-3% by this rule alone"), ["8.6"]),
        (layers("one kernel less"), []),
        (quantizes("more in INT8"), []),
    ],
)
def test_what_builds_apply_was_needed_or_faster_there(evidence: Evidence, earns: list[str]) -> None:
    rule = Rule("made-up", "", "B", "", lambda scope: iter(()), evidence=(evidence,))
    assert [target for target in target_names() if rule.is_built_in(target)] == earns
