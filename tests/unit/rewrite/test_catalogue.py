"""Rules are found in their families, in the order in which they are written; lists and pages follow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.rewrite_graphs import model
from trtopt.rewrite.rule import Rule
from trtopt.rewrite.rules import RULES, shuffles

ORDER = """
cast-like inline-if erase-identity plain-shape drop-dead drop-unused erase-arithmetic zero-state
fold-shapes fold-constants fold-bias fold-weights
plain-reshape reshape-chain share-equal
plain-instance-norm layer-norm
hard-sigmoid sigmoid softmax
reduce-to-pool pad-into-conv fold-batchnorm fold-scale fold-scale-before
attention-scale merge-matmuls
plain-integers tell-kernel
"""

ADDED = """
@rule("−x → −x", "B", "nothing", targets=("10",), evidence=(builds("a layer less", ("10",)),))
@at("Neg")
def added(scope, node):
    return "it is a test"
"""

WITH_ADDED = """
import importlib
import sys
from trtopt.rewrite.rule import builds
from trtopt.rewrite.rules import shuffles
shuffles.builds = builds
exec(open(sys.argv.pop(1), encoding="utf-8").read(), vars(shuffles))
importlib.reload(sys.modules["trtopt.rewrite.rules"])
"""


def test_the_rules_run_in_this_order() -> None:
    assert [rule.name for rule in RULES] == ORDER.split()


# ── one that is added ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def added(tmp_path: Path) -> Path:
    """A file with what is written at the end of a family."""
    file = tmp_path / "added.py"
    file.write_text(ADDED, "utf-8")
    return file


def run(added: Path, code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", WITH_ADDED + code, str(added), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path.cwd()).stdout


CLI = "from trtopt.cli.main import main; main()"


@pytest.mark.long
def test_one_place_in_a_family_is_all_that_a_new_rule_takes(added: Path, tmp_path: Path) -> None:
    listed = [rule["name"] for rule in json.loads(run(added, CLI, "rewrite", "--list", "--json", "-"))]
    at = listed.index("added")
    assert [*listed[:at], *listed[at + 1 :]] == [rule.name for rule in RULES]
    family = [one.name for one in vars(shuffles).values() if isinstance(one, Rule)]
    assert [listed[at - 1] in family, listed[at + 1] in family] == [True, False]  # at its end

    table = run(added, "from tests.support.reference_pages import rules_table; print(rules_table())")
    assert "| `added` | −x → −x | B | 8.6, 11, rtx: off; 10: build | nothing | 10: a layer less |" in table

    onnx.save(model("g (float[2] x) => (float[2] y) {y = Neg(x)}"), tmp_path / "in.onnx")
    files = ("rewrite", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"))
    for how in ([], ["--rules", "added"]):
        assert "added was declined because it is a test" in run(
            added, CLI, *files, *how, "--explain", "Neg:y"
        )
    assert "it is a test" not in run(added, CLI, *files, "--skip", "added")
