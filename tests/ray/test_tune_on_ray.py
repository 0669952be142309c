"""Tuning on a Ray cluster: candidates are built and raced on all nodes, and the ledger is as of this host."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import trtopt
from tests.ray.conftest import TwoNodes
from tests.ray.test_ray_executor import killing
from tests.support.paths import ROOT
from trtopt.records import Tuned
from trtopt.workflows.build.folder import check_folder
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.tune import tune as tuning
from trtopt.workflows.tune.kinds import KINDS, Change

MODEL = ROOT / "models" / "digits" / "digits.onnx"
SLOW = 'graph_optimization = "disable"\n'
"""What any level of optimisation improves on by far."""


def tuned(folder: Path, executor: str, listener: Listener = SILENT) -> Tuned:
    recipe = folder.parent / "slow.toml"
    recipe.write_text(SLOW, "utf-8")
    return trtopt.tune(
        MODEL,
        folder,
        batch=8,
        backend="onnxruntime",
        include=["builder-setting"],
        duration=0.1,
        threshold=0.4,  # what is below is noise on a busy host
        profile=str(recipe),
        executor=executor,
        resume=True,
        cache_dir=folder.parent / "cache",
        listener=listener,
    )


@pytest.fixture(autouse=True)
def _two_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are better than the baseline: once the first is accepted, the second has to be tried again."""
    found = [Change(level, recipe={"graph_optimization": level}) for level in ("all", "extended")]
    kind = next(kind for kind in KINDS if kind.name == "builder-setting")
    monkeypatch.setattr(tuning, "KINDS", (replace(kind, changes=lambda situation: iter(found)),))


def test_tuning_with_a_node_lost_finds_what_it_finds_here_and_goes_on_here(
    cluster: TwoNodes, tmp_path: Path
) -> None:
    at_once: list[Sequence[str]] = []
    progress, hit = killing(cluster, "turn")
    there = tuned(tmp_path / "there", "ray", Listener(progress=progress, plans=at_once.append))
    here = tuned(tmp_path / "here", "local")
    assert hit
    assert max(map(len, at_once)) == 2
    assert there.ledger.accepted == here.ledger.accepted == ("all",)
    for raced in (there.ledger.raced, here.ledger.raced):
        assert raced is not None
        assert raced.is_faster
    assert [one.candidate for one in there.ledger.entries] == ["all", "extended"]
    assert there.ledger.terms == here.ledger.terms
    assert check_folder(tmp_path / "there").is_whole
    assert tuned(tmp_path / "there", "local").ledger == there.ledger  # which measures nothing again
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "here", "slow.toml", "there"]


def test_tuning_that_is_interrupted_leaves_a_build_and_no_process(cluster: TwoNodes, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trtopt", "tune", str(MODEL), "-o", str(tmp_path / "out")]
    options = ["--executor", "ray", "--backend", "onnxruntime", "--cache-dir", str(tmp_path / "cache")]
    with subprocess.Popen([*command, *options], cwd=ROOT, stderr=subprocess.PIPE, text=True) as driver:
        assert driver.stderr is not None
        for line in driver.stderr:
            if "expected" in line:
                break
        driver.send_signal(signal.SIGINT)
        said = driver.stderr.read()
    assert driver.returncode == 130
    assert "run the same command with --resume" in said
    assert check_folder(tmp_path / "out").is_whole
