"""`trtopt history`, from benchmarks to the exit code of the gate."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import CommandLine
from tests.support.histories import runs_of
from trtopt.records import to_json


def test_a_benchmark_is_added_and_too_few_runs_leave_the_gate_shut(
    cpu_build: Path, trtopt_cli: CommandLine
) -> None:
    trtopt_cli(
        "bench", cpu_build, "--batch", "8", "--duration", "0.05", "--warmup", "0.01", "--json", "bench.json"
    )
    assert trtopt_cli("history", "add", "kept", "bench.json").returncode == 0
    done = trtopt_cli("history", "check", "kept")
    assert done.returncode == 5
    assert "1 of 9 runs" in done.stdout


def test_a_slower_level_shuts_the_gate_and_names_its_cause(trtopt_cli: CommandLine) -> None:
    for number, result in enumerate(runs_of([1.0] * 12 + [1.05] * 5)):
        (trtopt_cli.folder / f"{number:02}.json").write_bytes(to_json(result))
    files = sorted(trtopt_cli.folder.glob("*.json"))
    assert trtopt_cli("history", "add", "kept", *files[:12]).returncode == 0
    assert trtopt_cli("history", "check", "kept").returncode == 0
    trtopt_cli("history", "add", "kept", *files[12:])
    done = trtopt_cli("history", "check", "kept", "--json", "history.json")
    assert done.returncode == 3
    assert "SLOWER" in done.stdout
    assert "code: 0000000b → 0000000c" in " ".join(done.stdout.split())
    (series,) = json.loads((trtopt_cli.folder / "history.json").read_text())["series"]
    assert series["changes"][0]["ratio"] > 1.04
    assert trtopt_cli("history", "show", "kept").returncode == 0
