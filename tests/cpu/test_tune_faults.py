"""Candidates that hang, processes that die at any moment, and ledgers that belong elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import trtopt
from tests.support.command_line import DIGITS
from tests.support.killing import run_killed
from tests.support.tuning import kind
from trtopt.errors import ArtifactError, OutputError
from trtopt.files.manifests import read_manifest
from trtopt.records import LedgerEntry
from trtopt.workflows.build.folder import check_folder
from trtopt.workflows.tune import tune as tuning
from trtopt.workflows.tune.kinds import Change, Situation
from trtopt.workflows.tune.tuned_folder import LEDGER, read_ledger

ENGINES = """
import time
import onnxruntime
found = onnxruntime.InferenceSession
class Engine(found):
    def __init__(self, model, options=None, **others):
        while options is not None and options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL:
            time.sleep(3600)
        level = None if options is None else options.graph_optimization_level
        self.rest_s = 0.003 if level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC else 0.0
        super().__init__(model, options, **others)
    def run_with_iobinding(self, *arguments, **options):
        time.sleep(self.rest_s)
        super().run_with_iobinding(*arguments, **options)
onnxruntime.InferenceSession = Engine
"""
"""A Python that starts with this never gets an engine with parallel execution, and waits in each inference
of one with basic optimization: what undoes that is faster on the busiest host."""

FEW = """
import sys
from dataclasses import replace
from pathlib import Path
from trtopt.requests.build import TuneRequest
from trtopt.workflows.tune import tune as tuning
from trtopt.workflows.tune.kinds import KINDS, Change
from trtopt.workflows.tune.tune import tune

found = [Change(name, recipe=change) for name, change in {
    "all": {"graph_optimization": "all"}, "hangs": {"execution_mode": "parallel"},
    "one": {"intra_op_threads": 1}, "foreign": {"tiling": "full"}}.items() if name in sys.argv[4:]]
setting = next(one for one in KINDS if one.name == "builder-setting")
tuning.KINDS = (replace(setting, changes=lambda situation: iter(found)),)
model, out, cache = sys.argv[1:4]
slow = Path(out).with_suffix(".toml")
slow.write_text('graph_optimization = "basic"')
request = TuneRequest(
    model, out, profile=str(slow), backend="onnxruntime", batch=(8,), duration=0.05, resume=True,
    cache_dir=cache, timeout=20.0 if "hangs" in sys.argv else None)
tune(request)
"""
"""Starts from a slow engine; of the candidates, `all` undoes that, and `foreign` cannot be built."""


TWO = ("all", "foreign")

LOADER = """
import time
from pathlib import Path
import numpy as np

def hangs():
    yield {"images": np.zeros((40, 1, 8, 8), np.float32)}
    Path("called").touch()
    time.sleep(3600)

def counted():
    with open("calls", "a") as calls:
        calls.write("x")
    rng = np.random.default_rng(0)
    yield {"images": rng.random((16, 1, 8, 8), np.float32)}
"""


def tuned(folder: Path, calls: str, kill_at: int, *names: str) -> int:
    """Run `FEW` in Python processes that all start with `ENGINES`."""
    (folder / "start").mkdir(exist_ok=True)
    (folder / "start" / "sitecustomize.py").write_text(ENGINES)
    path = os.pathsep.join([str(folder / "start"), os.environ.get("PYTHONPATH", os.getcwd())])
    where = (str(DIGITS), str(folder / "out"), str(folder / "cache"))
    return run_killed(calls, kill_at, "-c", FEW, *where, *names, env=os.environ | {"PYTHONPATH": path})


def entries(folder: Path) -> tuple[LedgerEntry, ...]:
    return read_ledger(folder / "out" / LEDGER).entries


@pytest.mark.long
def test_a_candidate_that_hangs_is_ended_counted_and_does_not_end_the_run(tmp_path: Path) -> None:
    """A worker that sleeps for ever, not a failure that says so."""
    assert tuned(tmp_path, "exchange", 0, "hangs", "foreign", "all") == 0
    by_name = {entry.candidate: entry for entry in entries(tmp_path)}
    assert by_name["hangs"].verdict == "failed"
    assert "20 s" in by_name["hangs"].reason
    assert by_name["hangs"].cost_s >= 20
    assert by_name["foreign"].verdict == "failed"
    assert by_name["all"].verdict in ("accepted", "undecided")
    assert read_manifest(tmp_path / "out").tuning is not None
    assert check_folder(tmp_path / "out").is_whole


@pytest.mark.long
@pytest.mark.parametrize(
    ("calls", "kill_at"),
    [
        ("exchange", 1),
        ("replace", 3),
        ("replace", 12),
        ("fsync", 6),
    ],
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
    assert [entry.candidate for entry in ledger.entries] == [*TWO]
    assert ledger.entries[1].verdict == "failed"
    assert "--tiling" in ledger.entries[1].reason
    assert check_folder(out).is_whole
    manifest = read_manifest(out)
    assert manifest.tuning is not None
    assert manifest.tuning.changes == ledger.accepted
    if ledger.accepted:  # a host may be too busy even for this
        assert ledger.raced is not None
        assert manifest.tuning.gain == ledger.gain == ledger.raced.gain
        kept = ledger.baseline.engine
        assert kept is not None
        assert manifest.files[kept.path] == kept.sha256 != manifest.engines[0].sha256
        assert manifest.engines[0].plan.settings.graph_optimization == "all"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "out", "out.toml", "start"]
    assert tuned(tmp_path, calls, 0, *TWO) == 0  # which has nothing left to do
    assert read_ledger(out / LEDGER) == ledger


def tuning_on(folder: Path, function: str, budget: str, kind: str = "rewrite-rule") -> list[str]:
    (folder / "loader.py").write_text(LOADER)
    given = ["--backend", "onnxruntime", "--cache-dir", "cache", "--duration", "0.05", "-o", "out"]
    data = ["--data", f"loader.py:{function}", "--budget", budget, "--include", kind, "--resume"]
    return [sys.executable, "-m", "trtopt", "tune", str(DIGITS), *given, *data]


@pytest.mark.long
def test_samples_that_never_come_end_the_run_within_the_budget_and_leave_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        tuning_on(tmp_path, "hangs", "30s"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "reading the samples of loader.py:hangs: not done after 30 s" in done.stderr
    assert "while waiting for samples 33 to 64" in done.stderr
    assert "give it more time with --budget" in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"called", "loader.py"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("ended_by", "kind"),
    [
        pytest.param(signal.SIGINT, "precision", marks=pytest.mark.long),
        (signal.SIGKILL, "rewrite-rule"),
    ],
)
def test_a_run_ended_while_it_waits_for_samples_is_begun_again(
    ended_by: signal.Signals, kind: str, tmp_path: Path
) -> None:
    with subprocess.Popen(tuning_on(tmp_path, "hangs", "1h"), cwd=tmp_path) as process:
        while not (tmp_path / "called").exists():
            time.sleep(0.05)
        process.send_signal(ended_by)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}[ended_by]
    done = subprocess.run(
        tuning_on(tmp_path, "counted", "1h", kind), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls").read_text() == "x"  # for calibration, checks and races alike
    verdicts = {entry.candidate: entry.verdict for entry in entries(tmp_path)}
    assert verdicts.get("precision=best") != "failed"
    assert ("precision=best" in verdicts) == (kind == "precision")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"cache", "called", "calls", "loader.py", "out"}


@pytest.mark.parametrize("name", [pytest.param("batch8.onnx", marks=pytest.mark.long), "manifest.json"])
def test_a_best_engine_that_is_damaged_meanwhile_is_no_fault_of_a_candidate(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def after_damage(situation: Situation) -> Iterator[Change]:
        (tmp_path / "out" / name).unlink(missing_ok=True)
        yield Change("basic", recipe={"graph_optimization": "basic"})

    monkeypatch.setattr(tuning, "KINDS", (replace(kind("builder-setting"), changes=after_damage),))
    with pytest.raises(
        (ArtifactError, OutputError), match=r"missing or changed while|moved or removed while"
    ):
        trtopt.tune(
            DIGITS,
            tmp_path / "out",
            batch=8,
            backend="onnxruntime",
            duration=0.05,
            cache_dir=tmp_path / "cache",
        )
    assert read_ledger(tmp_path / "out" / LEDGER).entries == ()


def test_an_interrupted_run_says_how_to_continue(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trtopt", "tune", str(DIGITS), "-o", str(tmp_path / "out")]
    command += ["--backend", "onnxruntime", "--cache-dir", str(tmp_path / "cache"), "--budget", "1h"]
    command += ["--duration", "0.05"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "expected" in line:
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "run the same command with --resume" in said
    ledger = read_ledger(tmp_path / "out" / LEDGER)
    assert ledger.entries == ()
    assert ledger.lost_s > 0  # which counts
    assert ledger.spent_s == ledger.baseline.total_s + ledger.lost_s
    assert check_folder(tmp_path / "out").is_whole
