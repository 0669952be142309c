"""Sweeps killed at named steps and taken up again, against one that nobody disturbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import DIGITS

from trtopt.holding import KILL_VARIABLE
from trtopt.pipeline.rebuild import check_folder
from trtopt.pipeline.sweep_folder import read_sweep
from trtopt.workspace import read_manifest

WRITES = 12  # files that the sweep below writes, in its own process
STEPS = ("folder begun", "folder filled", "folder renamed")
STEPS += tuple(f"file written*{number}" for number in range(1, WRITES + 1))


def swept(folder: Path, kill_at: str) -> int:
    command = [sys.executable, "-m", "trtopt", "sweep", str(DIGITS), "-o", str(folder), "--batch", "1,2"]
    command += ["--backend", "onnxruntime", "--duration", "0.05", "--warmup", "0.01"]
    environment = os.environ | {KILL_VARIABLE: kill_at}
    return subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False).returncode


def made(folder: Path) -> tuple[set[str], dict[str, str], list[str]]:
    """The names of its files, its engines' hashes and its points."""
    build = folder / "builds" / "model"
    assert check_folder(build).is_whole
    engines = {engine.path: engine.sha256 for engine in read_manifest(build).engines}
    names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    report = read_sweep(folder)
    assert report.measured == report.points
    return names, engines, sorted(point.key for point in report.points)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "s"
    assert swept(folder, "") == 0
    return folder


@pytest.mark.parametrize("at", STEPS)
def test_a_sweep_killed_at_any_step_ends_as_one_that_was_not(
    at: str, undisturbed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "s"
    assert swept(folder, at) == -signal.SIGKILL
    assert swept(folder, "") == 0
    assert made(folder) == made(undisturbed)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
