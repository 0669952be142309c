"""What commands that were killed (SIGKILL) have left goes at the next start."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from command_line import DIGITS, CommandLine

from trtopt.holding import KILL_VARIABLE

COMMANDS = {
    "rewrite": (),
    "cast": (),
    "quantize": ("--precision", "int8", "--random-data"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_that_was_being_written_leaves_nothing(
    command: str, trtopt_cli: CommandLine, external_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = (command, external_model, "-o", "out.onnx", *COMMANDS[command])
    monkeypatch.setenv(KILL_VARIABLE, "model written")
    assert trtopt_cli(*asked).returncode == -signal.SIGKILL
    assert list(trtopt_cli.folder.glob(".out.onnx*"))
    assert not list(trtopt_cli.folder.glob("out.onnx*"))
    monkeypatch.delenv(KILL_VARIABLE)
    done = trtopt_cli(*asked)
    assert done.returncode == 0, done.stderr
    assert not list(trtopt_cli.folder.glob(".out.onnx*"))
    made = trtopt_cli.folder / "out.onnx"
    assert made.stat().st_mode == external_model.stat().st_mode


def test_a_worker_that_was_killed_leaves_nothing_in_the_systems_temporary_folder(
    trtopt_cli: CommandLine, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path_factory.mktemp("system")
    monkeypatch.setenv("TMPDIR", str(place))
    asked = ("build", DIGITS, "-o", "out", "--backend", "onnxruntime", "--no-rewrite")
    monkeypatch.setenv(KILL_VARIABLE, "optimised")
    assert "SIGKILL" in trtopt_cli.fails(1, *asked)
    assert len(list(place.glob(".trtopt.*"))) == 1
    monkeypatch.delenv(KILL_VARIABLE)
    assert trtopt_cli(*asked).returncode == 0
    assert list(place.glob(".trtopt*")) == []
