"""Tuning with real engines of ONNX Runtime: what wins, what fails, and runs that were killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.rewrite_graphs.case import model
from tests.support.command_line import DIGITS, HELDOUT, CommandLine
from tests.support.killing import run_killed
from trtopt.device.backends import open_builder
from trtopt.executors.local import THIS_HOST
from trtopt.files.manifests import read_manifest
from trtopt.recipe import Recipe
from trtopt.workflows.build.rebuild import check_folder
from trtopt.workflows.listener import SILENT
from trtopt.workflows.tune.kinds.kind import Change
from trtopt.workflows.tune.ledger import LEDGER, read_ledger
from trtopt.workflows.tune.make import Maker

TWO_CANDIDATES = """
import sys
from dataclasses import replace
from pathlib import Path
from trtopt.recipe import Recipe
from trtopt.workflows.tune import tune as tuning
from trtopt.workflows.tune.kinds.kind import Change
from trtopt.workflows.tune.kinds.table import KINDS
from trtopt.workflows.tune.request import TuneRequest

found = [
    Change("builder-setting", "all", recipe={"graph_optimization": "all"}),
    Change("builder-setting", "foreign", recipe={"tiling": "full"}),
]
kind = next(kind for kind in KINDS if kind.name == "builder-setting")
tuning.KINDS = (replace(kind, changes=lambda situation: iter(found)),)
recipe = Recipe(backend="onnxruntime", graph_optimization="basic")
model, out, cache = sys.argv[1:]
request = TuneRequest(recipe=recipe, batch=(8,), duration=0.05, resume=True, cache_dir=cache)
tuning.tune(model, out, request)
"""
"""Starts from a slow engine: one candidate undoes that, the other is a setting of TensorRT's."""


def tuned(folder: Path, calls: str, kill_at: int) -> int:
    where = (str(DIGITS), str(folder / "out"), str(folder / "cache"))
    return run_killed(calls, kill_at, "-c", TWO_CANDIDATES, *where)


def entries(folder: Path) -> list[str]:
    """The ledger's, as text: a measurement that was taken again differs."""
    return [repr(entry) for entry in read_ledger(folder / "out" / LEDGER).entries]


@pytest.mark.parametrize(("calls", "kill_at"), [("exchange", 1), ("replace", 12)])
def test_a_killed_run_is_continued_and_measures_nothing_twice(
    calls: str, kill_at: int, tmp_path: Path
) -> None:
    assert tuned(tmp_path, calls, kill_at) == -signal.SIGKILL
    out = tmp_path / "out"
    before = entries(tmp_path)
    assert tuned(tmp_path, calls, 0) == 0
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
    assert tuned(tmp_path, calls, 0) == 0  # which has nothing left to do
    assert read_ledger(out / LEDGER) == ledger


def test_the_command_leaves_a_build_a_ledger_and_a_score_and_refuses_other_terms(
    trtopt_cli: CommandLine,
) -> None:
    given = ("--backend", "onnxruntime", "--include", "rewrite-rule", "--duration", "0.05")
    given = (*given, "--cache-dir", "cache", "-o", "out")
    done = trtopt_cli("tune", DIGITS, *given, "--data", HELDOUT, "--json", "tuned.json")
    assert done.returncode == 0, done.stderr
    assert "no candidate is better than the baseline" in done.stdout
    assert "rule=merge-convs" in done.stdout
    assert "ended: every candidate was tried" in done.stdout
    written = json.loads((trtopt_cli.folder / "tuned.json").read_bytes())
    assert {entry["verdict"] for entry in written["ledger"]["entries"]} == {"unchanged"}
    assert check_folder(trtopt_cli.folder / "out").is_whole
    assert "--resume" in trtopt_cli.fails(1, "tune", DIGITS, *given)
    other = trtopt_cli.fails(1, "tune", DIGITS, *given, "--resume", "--objective", "throughput")
    assert "is tuned on other terms: objective latency, now throughput" in other
    assert (
        "no candidate was measured in 1 ledgers"
        in trtopt_cli("tune", "--score", "--backend", "onnxruntime", "--cache-dir", "cache").stdout
    )


def test_a_baseline_that_misses_the_bound_or_the_budget_leaves_nothing(trtopt_cli: CommandLine) -> None:
    given = ("--backend", "onnxruntime", "--cache-dir", "cache", "-o", "out", "--duration", "0.05")
    missed = trtopt_cli.fails(3, "tune", DIGITS, *given, "--min-sqnr", "900")
    assert "the baseline misses the bound: SQNR in dB" in missed
    short = trtopt_cli.fails(2, "tune", DIGITS, *given, "--budget", "0.1s")
    assert "--budget 0.1s: building, checking and measuring the baseline took" in short


def test_changes_on_top_of_one_another_stay_builds_of_the_users_model(tmp_path: Path) -> None:
    text = """
        # w: float[8,16]
        # u: float[8,16]
        g (float[n,8] x) => (float[n,16] y) {
            a = MatMul(x, w)
            b = MatMul(x, u)
            c = Relu(a)
            y = Add(c, b)
        }"""
    onnx.save(model(text), tmp_path / "model.onnx")
    maker = Maker(
        source=tmp_path / "model.onnx",
        recipe=Recipe(backend="onnxruntime"),
        builder=open_builder("onnxruntime"),
        bounds={},
        data=None,
        cache_dir=None,
        limit_s=60.0,
        executor=THIS_HOST,
        listener=SILENT,
    )
    built = maker.baseline(tmp_path / "0", 2)
    source = built.manifest.source_sha256
    changes = (
        Change("rewrite-rule", "rule=merge-matmuls", rule="merge-matmuls"),
        Change("builder-setting", "threads", recipe={"intra_op_threads": 1}),
        Change("batch", "batch=4", recipe={"batch": (4,)}),
    )
    for number, change in enumerate(changes, 1):
        built = maker.make(built, change, tmp_path / str(number))
        assert check_folder(built.folder).is_whole
        assert read_manifest(built.folder) == built.manifest
        assert built.manifest.source_sha256 == source
    nodes = [node.op_type for node in onnx.load(tmp_path / "3" / built.manifest.onnx.path).graph.node]
    assert nodes.count("MatMul") == 1
    assert built.engine.plan.settings.intra_op_threads == 1
    assert built.engine.plan.batch.max == (4,)
    assert built.changes == ("rule=merge-matmuls", "threads", "batch=4")
    idle = maker.make(built, Change("rewrite-rule", "rule=attention", rule="attention"), tmp_path / "4")
    assert idle.engine == built.engine  # there is no attention


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
