"""Rules are found in their package and put in order; lists and pages follow."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests.rewrite_graphs import model
from trtopt.rewrite.catalogue import RULES, in_order
from trtopt.rewrite.rule import Rule, Stage

ORDER = """
cast-like inline-if erase-identity plain-shape fold-shapes fold-constants
drop-dead drop-unused erase-arithmetic move-constant fold-weights zero-state
transpose-reduce plain-reshape reshape-chain share-equal
plain-instance-norm layer-norm rms-norm
gelu hard-sigmoid sigmoid softmax reduce-to-pool
pad-into-conv fold-batchnorm fold-scale fold-scale-before attention attention-scale
merge-matmuls pad-channels plain-integers tell-kernel efficient-nms
"""

ADDED = '''"""−x → −x.

A rule of a test's.
"""
from trtopt.rewrite.evidence import builds
from trtopt.rewrite.rule import Match, Rule, Stage

def _find(scope):
    return (Match(node) for node in scope.nodes("Neg"))

RULE = Rule("added", "B", "nothing", _find, lambda scope, match: "it is a test", lambda scope, match: None,
            stage=Stage.SHUFFLES, after=("transpose-reduce",), targets=("10",),
            evidence=(builds("a layer less", ("10",)),))
'''

WITH_ADDED = """
import sys
from trtopt.rewrite import rules
rules.__path__.append(sys.argv.pop(1))
"""


def test_the_rules_run_in_this_order() -> None:
    assert [rule.name for rule in RULES] == ORDER.split()


def test_the_order_is_the_same_however_rules_are_found() -> None:
    assert in_order(reversed(RULES)) == RULES


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ({"a": (), "b": ("nowhere",)}, "after rules that there are not: {'b': \\('nowhere',\\)}"),
        ({"a": ("b",), "b": ("a",)}, "in a circle"),
    ],
)
def test_rules_without_an_order_are_refused(names: dict[str, tuple[str, ...]], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        in_order(replace(RULES[0], name=name, after=after) for name, after in names.items())


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="one name"):
        in_order([RULES[0], replace(RULES[1], name=RULES[0].name)])


def test_a_stage_comes_before_a_name_and_what_a_rule_names_before_both() -> None:
    def rule(name: str, stage: Stage, *after: str) -> Rule:
        return replace(RULES[0], name=name, stage=stage, after=after)

    found = [
        rule("a", Stage.SHUFFLES),
        rule("b", Stage.CLEANING, "c"),
        rule("c", Stage.CLEANING),
        rule("d", Stage.CLEANING, "a"),
    ]
    assert [rule.name for rule in in_order(found)] == ["c", "b", "a", "d"]


# ── one that is added ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def added(tmp_path: Path) -> Path:
    """A folder with a rule's module in it."""
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "added.py").write_text(ADDED, "utf-8")
    return folder


def run(added: Path, code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", WITH_ADDED + code, str(added), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path.cwd()).stdout


CLI = "from trtopt.cli.main import main; main()"


def test_a_module_is_all_that_a_new_rule_takes(added: Path, tmp_path: Path) -> None:
    listed = [rule["name"] for rule in json.loads(run(added, CLI, "rewrite", "--list", "--json", "-"))]
    assert listed == [*ORDER.split()[:13], "added", *ORDER.split()[13:]]

    table = run(added, "from tests.support.reference_pages import rules_table; print(rules_table())")
    assert "| `added` | −x → −x | B | 8.6, 11, rtx: off; 10: build | nothing | 10: a layer less |" in table

    onnx.save(model("g (float[2] x) => (float[2] y) {y = Neg(x)}"), tmp_path / "in.onnx")
    files = ("rewrite", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"))
    for how in ([], ["--rules", "added"]):
        assert "added was declined because it is a test" in run(
            added, CLI, *files, *how, "--explain", "Neg:y"
        )
    assert "it is a test" not in run(added, CLI, *files, "--skip", "added")
