"""The benchmark against plain TensorRT, on ONNX Runtime with the repository's own models."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "plain" / "plain.py"


def plain(*words: object) -> str:
    command = [sys.executable, SCRIPT, *words]
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def judge() -> Any:
    spec = importlib.util.spec_from_file_location("plain_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def cell(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    sides = {"trtopt": ours, "plain": theirs}
    return {"turns": {name: [{"device_ms": ms} for ms in times] for name, times in sides.items()}}


def test_a_dry_run_measures_keeps_and_tables_a_cell_and_a_second_run_adds_to_it(tmp_path: Path) -> None:
    terms = ("--work", tmp_path / "work", "--rounds", 2, "--turn", 0.01, "--only", "digits-1")
    places = ("--out", tmp_path / "out")
    assert "left: none" in plain("run", "--dry-run", *terms, *places, "--revision", "r1")
    found = json.loads((tmp_path / "out" / "digits-1.json").read_text())
    assert found["cosine"] > 0.999
    assert [len(turns) for turns in found["turns"].values()] == [2, 2]
    assert (found["revision"], found["rewrite"]) == ("r1", "default")
    (row,) = [line for line in plain("table", *places).splitlines() if line.startswith("| digits | 1 |")]
    assert row.endswith("| none |")
    plain("run", "--dry-run", *terms, *places, "--revision", "r2")
    assert json.loads((tmp_path / "out" / "digits-1.json").read_text())["revision"] == "r1"


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [([1.02, 1.03, 1.02, 1.03], "SLOWER"), ([1.0, 1.03, 0.99, 1.02], "SAME"), ([0.9] * 4, "FASTER")],
)
def test_a_verdict_takes_one_per_cent_beyond_the_interval(
    judge: Any, ours: list[float], verdict: str
) -> None:
    assert judge.verdict_of(cell(ours, [1.0] * 4)) == verdict


def test_what_was_not_measured_has_no_verdict(judge: Any) -> None:
    assert judge.verdict_of({"failed": "it did not build"}) is None
