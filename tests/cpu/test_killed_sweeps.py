"""Sweeps killed before files get their names and taken up again, against one that nobody disturbed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.command_line import DIGITS
from tests.support.killing import run_killed
from trtopt.files.manifests import read_manifest
from trtopt.workflows.build.folder import check_folder
from trtopt.workflows.sweep.folder import read_sweep

RENAMES = 14  # of the files and folders that the sweep below makes, in its own process
KILLED_AT = (1, 4, 8, 9, 14)
"""The first report, within a build, its end, within a point, the last table."""


def swept(folder: Path, kill_at: int) -> int:
    command = ["-m", "trtopt", "sweep", str(DIGITS), "-o", str(folder), "--batch", "1,2"]
    command += ["--backend", "onnxruntime", "--duration", "0.05", "--warmup", "0.01"]
    return run_killed("replace", kill_at, *command)


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
    assert swept(folder, RENAMES + 1) == 0
    return folder


@pytest.mark.long
@pytest.mark.parametrize("at", KILLED_AT)
def test_a_sweep_killed_at_any_step_ends_as_one_that_was_not(
    at: int, undisturbed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "s"
    assert swept(folder, at) == -signal.SIGKILL
    assert swept(folder, 0) == 0
    assert made(folder) == made(undisturbed)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
