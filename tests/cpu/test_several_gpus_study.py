"""The benchmark on several GPUs: its judgements, and the part of its dry run that needs no Ray."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

FOLDER = Path(__file__).parents[2] / "benchmarks" / "several-gpus"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER)
    import several_gpus

    return several_gpus


def several_gpus(*words: object) -> str:
    command = [sys.executable, FOLDER / "several_gpus.py", *words]
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


def swept(gpus: int, building_s: float, latencies: list[float]) -> dict[str, Any]:
    """A cell of a sweep."""
    points = [{"precision": "fp16", "batch": 2**at, "ms": ms} for at, ms in enumerate(latencies)]
    times = {"building_s": building_s, "measuring_s": 1.0, "wall_s": 2.0, "measured_at_once": 1}
    return {"gpus": gpus, "points": points, **times}


def test_seconds_of_an_interrupted_sweep_add_up(tmp_path: Path) -> None:
    earlier = {"wall_s": 5.0, "jobs": [["building", 1.0, 5.0]]}
    folder = tmp_path / "work" / "sweep-one"
    folder.mkdir(parents=True)
    (folder / "jobs.json").write_text(json.dumps({"runs": [earlier]}))
    places = ("--work", tmp_path / "work", "--out", tmp_path / "out")
    terms = ("--dry-run", "--only", "sweep-one", "--precision", "fp16")
    assert several_gpus("run", *terms, *places).endswith("left: none\n")
    cell = json.loads((tmp_path / "out" / "sweep-one.json").read_text())
    assert cell["runs"][0] == earlier
    engines = [job for job in cell["runs"][1]["jobs"] if job[0] == "building"]
    assert len(engines) == len(cell["points"]) == 4
    assert cell["building_s"] == pytest.approx(4 + sum(end - begin for _, begin, end in engines), abs=0.01)
    assert cell["measured_at_once"] == 1
    assert "| sweep-one | 1 |" in several_gpus("table", "--out", tmp_path / "out")


def test_engines_built_at_the_same_time_count_once(study: Any) -> None:
    jobs = [["building", 0, 4], ["building", 1, 3], ["building", 6, 7], ["measuring", 7, 9]]
    assert study.covered_s(jobs, "building") == 5
    assert study.most_at_once(jobs, "building") == 2
    assert study.most_at_once(jobs, "measuring") == 1


def test_scaling_is_against_one_gpu_and_equality_against_the_control(study: Any) -> None:
    found: dict[str, Any] = {cell.name: {} for cell in study.CELLS}
    found["sweep-local"] = swept(4, 12.5, [1.0, 2.0])
    found["sweep-one"] = swept(1, 40.0, [1.0, 2.1])
    found["sweep-control"] = swept(4, 12.5, [1.01, 2.04])
    rows = study.scaling_rows(found)
    assert "| sweep-local | 4 | 12.5 | 0.80 |" in "\n".join(rows)
    assert f"| sweep-ray | {study.MISSING} |" in "\n".join(rows)
    assert study.equality_rows(found)[-1] == "| sweep-one | +2.5% | +5.0% | 1 of 2 |"


def test_tuning_is_compared_up_to_the_last_candidate_of_both_ledgers(study: Any) -> None:
    def entry(name: str, verdict: str, cost_s: float) -> dict[str, Any]:
        return {"candidate": name, "verdict": verdict, "gain": None, "cost_s": cost_s}

    one = {"gpus": 1, "baseline_s": 10.0, "entries": [entry("a", "same", 10.0), entry("b", "same", 20.0)]}
    entries = [entry("b", "same", 4.0), entry("a", "slower", 6.0), entry("c", "same", 9.0)]
    rows = study.tuning_rows(
        {"tune-one": one, "tune-ray": {"gpus": 4, "baseline_s": 10.0, "entries": entries}}
    )
    assert "| c | not tried | – | same | 9 |" in rows
    assert rows[-1].startswith("2 candidates are in both ledgers, 1 of them with the same verdict.")
    assert "after 40 s on one GPU and 20 s on 4: 2.00 times as fast." in rows[-1]
