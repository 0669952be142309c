"""The fusion audit's own judgement, and what it writes when its time is over."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = Path(__file__).parents[3] / "benchmarks" / "fusion-audit" / "fusion_audit.py"


def _audit() -> Any:
    spec = importlib.util.spec_from_file_location("fusion_audit", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _side(*layers: tuple[str, str]) -> dict[str, Any]:
    told = [
        {"name": f"l{place}", "type": kind, "tactic": tactic} for place, (kind, tactic) in enumerate(layers)
    ]
    return {"network_layers": 9, "engine_layers": told, "seconds": 1.0}


_ONE, _TWO = _side(("Conv", "a")), _side(("Conv", "a"), ("PointWise", "b"))
_FAILED = {"error": "No importer for CastLike"}


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (_TWO, _ONE, "fewer layers"),
        (_ONE, _TWO, "more layers"),
        (_ONE, _ONE, "no difference"),
        (_ONE, _side(("Conv", "z")), "same layers, other tactics"),
        (_ONE, _side(("Shuffle", "a")), "other layers"),
        (_FAILED, _ONE, "builds only after"),
        (_ONE, _FAILED, "BUILDS NO MORE"),
        (_FAILED, _FAILED, "builds neither way"),
        ({**_ONE, "engine_layers": None}, {**_ONE, "engine_layers": None}, "network layers 9 → 9"),
    ],
)
def test_the_verdict_compares_the_engines(
    before: dict[str, Any], after: dict[str, Any], verdict: str
) -> None:
    assert _audit().evaluator(before, after) == verdict


@pytest.mark.parametrize(
    ("verdicts", "claim"),
    [
        (["no difference", "fewer layers"], "yes"),
        (["builds only after"], "yes"),
        (["no difference", "more layers"], "no: the engine got worse"),
        (["BUILDS NO MORE"], "no: the engine got worse"),
        (["no difference", "no difference"], "TensorRT did it already"),
        (["no difference", "same layers, other tactics"], "not by the number of layers"),
    ],
)
def test_a_rule_fuses_as_claimed_if_a_graph_of_its_own_does(verdicts: list[str], claim: str) -> None:
    assert _audit().fused(verdicts) == claim


def test_what_is_built_is_not_built_again(tmp_path: Path) -> None:
    """A file in `built` stands for its pair: without TensorRT nothing else could."""
    pair = {"rule": "r", "case": "c", "claims": "one kernel", "files": ["r-0-before.onnx", "r-0-after.onnx"]}
    (tmp_path / "pairs.json").write_text(json.dumps({"target": "8.6", "pairs": [{**pair, "flags": []}]}))
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / "r-0.json").write_text(json.dumps({**pair, "before": _TWO, "after": _ONE}))
    command = [sys.executable, str(_SCRIPT), "build", str(tmp_path), "--module", "nothing"]
    subprocess.run(command, check=True, capture_output=True)
    assert json.loads((tmp_path / "layers.json").read_text())["problems"] == {}
    assert "| r | 1 | 2 | 1 | yes |" in (tmp_path / "layers.md").read_text()


@pytest.mark.long
def test_when_the_time_is_over_it_writes_what_it_has(tmp_path: Path) -> None:
    for arguments in (["pairs", str(tmp_path)], ["build", str(tmp_path), "--limit", "0"]):
        subprocess.run([sys.executable, str(_SCRIPT), *arguments], check=True, capture_output=True)
    pairs = json.loads((tmp_path / "pairs.json").read_text())["pairs"]
    told = json.loads((tmp_path / "layers.json").read_text())
    assert told["pairs"] == []
    assert set(told["problems"]) == {pair["rule"] for pair in pairs}
    assert all((tmp_path / name).exists() for pair in pairs for name in pair["files"])
