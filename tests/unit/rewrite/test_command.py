"""`trtopt rewrite`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

import trtopt
from tests.rewrite_graphs import model
from tests.support.command_line import DIGITS
from trtopt.cli.models import rewrite
from trtopt.errors import OutputError, UsageError
from trtopt.records import from_json
from trtopt.rewrite import rewrite as api
from trtopt.rewrite.rewrite_trace import RewriteTrace
from trtopt.rewrite.rule import Verdict, at, rule
from trtopt.rewrite.rules import RULES
from trtopt.rewrite.rules.cleaning import erase_identity
from trtopt.rewrite.scope import Scope
from trtopt.targets import target_names

_TEXT = """g (float[N,4] x) => (float[N,4] y, float[N,4] z)
    {a = Relu(x) b = Identity(a) y = Neg(b) z = Identity(x)}"""


def _run(folder: Path, *more: str) -> object:
    onnx.save(model(_TEXT), folder / "in.onnx")
    return CliRunner().invoke(rewrite, [str(folder / "in.onnx"), "-o", str(folder / "out.onnx"), *more])


def test_the_summary_tells_what_was_done_declined_and_checked(tmp_path: Path) -> None:
    result = _run(tmp_path)
    assert result.exit_code == 0
    assert "4 → 3 nodes" in result.output
    assert "1 x erase-identity" in result.output
    assert "declined 1 x erase-identity: its output is an output" in result.output
    assert "verified on 2 inputs" in result.output


def test_json_is_the_trace(tmp_path: Path) -> None:
    trace = from_json(_run(tmp_path, "--json", "-").stdout.encode(), RewriteTrace)
    assert trace.counts == {"erase-identity": 1}


def test_what_is_shown_goes_to_standard_error_where_the_json_is_printed(tmp_path: Path) -> None:
    done = _run(tmp_path, "--explain", "Identity:b", "--json", "-")
    assert from_json(done.stdout.encode(), RewriteTrace).counts == {"erase-identity": 1}
    assert "erase-identity was applied" in done.stderr
    assert "1 x erase-identity" in _run(tmp_path, "--json", "-").stderr


def test_explain_tells_of_one_node(tmp_path: Path) -> None:
    assert "erase-identity was applied" in _run(tmp_path, "--explain", "Identity:b").output
    assert "was declined because" in _run(tmp_path, "--explain", "Identity:z").output


def test_explaining_a_node_that_no_rule_knows_writes_nothing(tmp_path: Path) -> None:
    assert isinstance(_run(tmp_path, "--explain", "nonsense").exception, UsageError)
    assert isinstance(_run(tmp_path, "--explain", "", "--json", "-").exception, UsageError)
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_rules_can_be_chosen_and_skipped(tmp_path: Path) -> None:
    assert "erase-identity" not in _run(tmp_path, "--skip", "erase-identity").output
    assert "0 x" not in _run(tmp_path, "--rules", "cast-like", "--no-check").output


def test_the_list_says_of_every_rule_what_applies_it_for_each_target() -> None:
    header, *lines = CliRunner().invoke(rewrite, ["--list"]).output.splitlines()
    assert header.split() == ["rule", "class", *target_names(), "enables"]
    rows = {line.split()[0]: line for line in lines}
    assert all(rule.name in rows for rule in RULES)
    assert re.search(r"bit-exact +build +quantise +quantise +quantise ", rows["fold-weights"])
    assert re.search(r"equal up to rounding +off +clean +clean +off ", rows["attention-scale"])
    assert re.search(r"equal up to rounding +off +off +off +off ", rows["merge-matmuls"])


def test_the_list_can_be_had_as_json() -> None:
    rules = {
        rule["name"]: rule
        for rule in json.loads(CliRunner().invoke(rewrite, ["--list", "--json", "-"]).output)
    }
    assert list(rules) == [rule.name for rule in RULES]
    assert rules["layer-norm"]["class"] == "N"
    assert [rules["layer-norm"][key] for key in ("default", "clean")] == [[], [*target_names()]]
    assert [rules["merge-matmuls"][key] for key in ("default", "clean")] == [[], []]
    assert [rules["drop-unused"][key] for key in ("default", "builds")] == [[*target_names()]] * 2


def test_what_would_be_passed_over_in_silence_is_refused(tmp_path: Path) -> None:
    for more in (["--rules", ""], ["--rules", ","]):
        assert isinstance(_run(tmp_path, *more).exception, UsageError)
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]
    assert "1 x erase-identity" in _run(tmp_path, "--skip", "").output


def test_a_node_whose_rule_was_undone_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @rule("", "B", "")
    @at("Neg")
    def lie(scope: Scope, node: Any) -> Verdict:
        return lambda: scope.replace(node, "Abs", list(node.inputs))

    monkeypatch.setattr(api, "RULES", (lie, erase_identity))
    told = _run(tmp_path, "--clean", "--explain", "Neg:y").output
    assert "Neg:y: lie was tried and undone because output 'y' moved by" in told
    assert "Identity:b: erase-identity was applied" in _run(tmp_path, "--explain", "Identity:b").output


def test_a_trace_from_before_undone_rules_had_nodes_is_read(tmp_path: Path) -> None:
    old = json.loads(_run(tmp_path, "--json", "-").stdout)
    old["undone"] = [{"rule": "softmax", "reason": "it moved"}]
    assert from_json(json.dumps(old).encode(), RewriteTrace).undone[0].nodes == ()


def test_a_rule_that_fails_is_told_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @rule("", "B", "")
    @at("Identity")
    def fail(scope: Scope, node: Any) -> Verdict:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(api, "RULES", (fail, erase_identity))
    done = _run(tmp_path, "--clean")
    assert done.exit_code == 0
    assert "undone fail: rule 'fail' failed at" in done.output
    assert "1 x erase-identity" in done.output


def test_quantize_tells_of_a_rule_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @rule("", "B", "")
    @at("Conv")
    def fail(scope: Scope, node: Any) -> Verdict:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(api, "RULES", (fail,))
    monkeypatch.setattr("trtopt.workflows.precision.quantize.quantizing_rules", lambda target: ("fail",))
    report = trtopt.quantize(DIGITS, tmp_path / "q.onnx", precision="int8", target="8.6", random_data=True)
    assert [note for note in report.notes if note.startswith("undone fail: ")]


def test_a_batch_becomes_dynamic_without_a_rule_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @rule("", "B", "")
    @at("Identity")
    def fail(scope: Scope, node: Any) -> Verdict:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(api, "_SHAPES", (fail,))
    onnx.save(model(_TEXT.replace("[N,", "[2,")), tmp_path / "in.onnx")
    files = [str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx")]
    done = CliRunner().invoke(rewrite, [*files, "--dynamic-batch"])
    assert done.exit_code == 0
    assert "undone fail: rule 'fail' failed at" in done.output


def test_a_batch_is_not_fixed_and_opened_at_once(tmp_path: Path) -> None:
    options = ["-o", str(tmp_path / "out.onnx"), "--batch", "4", "--dynamic-batch"]
    error = CliRunner().invoke(rewrite, [str(DIGITS), *options]).exception
    assert isinstance(error, UsageError)
    assert "--dynamic-batch" in error.problem
    assert not (tmp_path / "out.onnx").exists()


def test_a_model_and_a_place_are_needed() -> None:
    assert isinstance(CliRunner().invoke(rewrite, []).exception, UsageError)


def test_importing_the_commands_loads_no_onnx() -> None:
    code = (
        "import sys, trtopt.cli.models, trtopt.rewrite\n"
        "print(sorted({'onnx', 'onnxruntime', 'onnx_graphsurgeon', 'torch'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_a_folder_to_write_to_is_named(tmp_path: Path) -> None:
    onnx.save(model(_TEXT), tmp_path / "in.onnx")
    for folder in (tmp_path, Path()):
        with pytest.raises(OutputError, match="is a folder"):
            api.rewrite_model(tmp_path / "in.onnx", folder, target="10")
