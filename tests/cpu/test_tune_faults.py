"""Candidates that hang, processes that die at any moment, and ledgers that belong elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import DIGITS
from tests.support.killing import run_killed
from trtopt.files.manifests import read_manifest
from trtopt.records import LedgerEntry
from trtopt.workflows.build.rebuild import check_folder
from trtopt.workflows.tune.ledger import LEDGER, read_ledger

HANGING = """
import time
import onnxruntime
found = onnxruntime.InferenceSession
class Hanging(found):
    def __init__(self, model, options=None, **others):
        while options is not None and options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL:
            time.sleep(3600)
        super().__init__(model, options, **others)
onnxruntime.InferenceSession = Hanging
"""
"""A Python that starts with this never gets an engine with parallel execution."""

FEW = """
import sys
from dataclasses import replace
from trtopt.recipe import Recipe
from trtopt.workflows.tune import tune as tuning
from trtopt.workflows.tune.kinds import builder_setting
from trtopt.workflows.tune.kinds.kind import Change
from trtopt.workflows.tune.request import TuneRequest

found = [Change("builder-setting", name, recipe=change) for name, change in {
    "all": {"graph_optimization": "all"}, "hangs": {"execution_mode": "parallel"},
    "one": {"intra_op_threads": 1}, "foreign": {"tiling": "full"}}.items() if name in sys.argv[4:]]
tuning.KINDS = (replace(builder_setting.KIND, changes=lambda situation: iter(found)),)
recipe = Recipe(backend="onnxruntime", graph_optimization="basic")
model, out, cache = sys.argv[1:4]
request = TuneRequest(
    recipe=recipe, batch=(8,), duration=0.05, resume=True, cache_dir=cache,
    timeout=10.0 if "hangs" in sys.argv else None)
tuning.tune(model, out, request)
"""
"""Starts from a slow engine; of the candidates, `all` undoes that, and `foreign` cannot be built."""


TWO = ("all", "foreign")


def tuned(folder: Path, calls: str, kill_at: int, *names: str, **environment: str) -> int:
    where = (str(DIGITS), str(folder / "out"), str(folder / "cache"))
    return run_killed(calls, kill_at, "-c", FEW, *where, *names, env=os.environ | environment)


def entries(folder: Path) -> tuple[LedgerEntry, ...]:
    return read_ledger(folder / "out" / LEDGER).entries


def test_a_candidate_that_hangs_is_ended_counted_and_does_not_end_the_run(tmp_path: Path) -> None:
    """A worker that sleeps for ever, not a failure that says so."""
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "sitecustomize.py").write_text(HANGING)
    path = os.pathsep.join([str(tmp_path / "start"), os.environ.get("PYTHONPATH", os.getcwd())])
    assert tuned(tmp_path, "exchange", 0, "hangs", "foreign", "all", PYTHONPATH=path) == 0
    by_name = {entry.candidate: entry for entry in entries(tmp_path)}
    assert by_name["hangs"].verdict == "failed"
    assert "10" in by_name["hangs"].reason
    assert 10 <= by_name["hangs"].cost_s < 60
    assert by_name["foreign"].verdict == "failed"
    assert by_name["all"].verdict == "accepted"
    assert read_manifest(tmp_path / "out").tuning is not None
    assert check_folder(tmp_path / "out").is_whole


@pytest.mark.parametrize(
    ("calls", "kill_at"), [("exchange", 1), ("replace", 3), ("replace", 12), ("fsync", 6)]
)
def test_a_killed_run_is_continued_and_measures_nothing_twice(
    calls: str, kill_at: int, tmp_path: Path
) -> None:
    assert tuned(tmp_path, calls, kill_at, *TWO) == -signal.SIGKILL
    out = tmp_path / "out"
    before = entries(tmp_path) if (out / LEDGER).is_file() else ()
    assert tuned(tmp_path, calls, 0, *TWO) == 0
    assert entries(tmp_path)[: len(before)] == before
    ledger = read_ledger(out / LEDGER)
    assert [(entry.candidate, entry.verdict) for entry in ledger.entries] == [
        ("all", "accepted"),
        ("foreign", "failed"),
    ]
    assert "--tiling" in ledger.entries[1].reason
    assert check_folder(out).is_whole
    manifest = read_manifest(out)
    assert manifest.tuning is not None
    assert manifest.tuning.changes == ("all",)
    assert manifest.tuning.gain == ledger.gain > 0.1
    assert manifest.engines[0].plan.settings.graph_optimization == "all"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "out"]
    assert tuned(tmp_path, calls, 0, *TWO) == 0  # which has nothing left to do
    assert read_ledger(out / LEDGER) == ledger


def test_an_interrupted_run_says_how_to_continue(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trtopt", "tune", str(DIGITS), "-o", str(tmp_path / "out")]
    command += ["--backend", "onnxruntime", "--cache-dir", str(tmp_path / "cache"), "--budget", "1h"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "expected" in line:
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "run the same command with --resume" in said
    assert check_folder(tmp_path / "out").is_whole
