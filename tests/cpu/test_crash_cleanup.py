"""What commands that were killed (SIGKILL) have left goes at the next start."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import DIGITS, CommandLine
from tests.support.killing import run_killed
from tests.support.long import few

COMMANDS = {
    "rewrite": (),
    "cast": (),
    "quantize": ("--precision", "int8", "--random-data"),
}


@pytest.mark.parametrize("command", few("quantize", of=COMMANDS))
def test_a_model_that_was_being_written_leaves_nothing(
    command: str, trtopt_cli: CommandLine, external_model: Path
) -> None:
    asked = (command, external_model, "-o", "out.onnx", *COMMANDS[command])
    ended = run_killed("replace", 1, "-m", "trtopt", *map(str, asked), cwd=trtopt_cli.folder)
    assert ended == -signal.SIGKILL
    assert list(trtopt_cli.folder.glob(".out.onnx*"))
    assert {file.name for file in trtopt_cli.folder.glob("out.onnx*")} <= {"out.onnx.data"}
    done = trtopt_cli(*asked)
    assert done.returncode == 0, done.stderr
    assert not list(trtopt_cli.folder.glob(".out.onnx*"))
    assert {file.name for file in trtopt_cli.folder.glob("out.onnx*.data")} == {"out.onnx.data"}
    made = trtopt_cli.folder / "out.onnx"
    assert made.stat().st_mode == external_model.stat().st_mode


TELLING = {
    "check": (DIGITS, "--against", DIGITS),
    "bench": (DIGITS, "--backend", "onnxruntime", "--duration", "0.05", "--warmup", "0.01"),
}


@pytest.mark.parametrize("command", few("bench", of=TELLING))
def test_onnx_runtime_leaves_no_file_of_its_telemetry(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (system := tmp_path / "system").mkdir()
    monkeypatch.setenv("TMPDIR", str(system))
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)  # set by imports, here too
    words = [sys.executable, "-m", "trtopt", command, *map(str, TELLING[command])]
    subprocess.run(words, check=True, capture_output=True)
    assert list(system.iterdir()) == []


def test_a_worker_that_was_killed_leaves_nothing_in_the_systems_temporary_folder(
    trtopt_cli: CommandLine, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path_factory.mktemp("system")
    monkeypatch.setenv("TMPDIR", str(place))
    building = """
import os, signal, sys
from pathlib import Path
from trtopt.device.ort.builder import _optimise
from trtopt.onnxio.model_info import load_graph
model = load_graph(Path(sys.argv[1]))
Path.read_bytes = lambda path: os.kill(os.getpid(), signal.SIGKILL)
_optimise(model)
"""
    (program := place.parent / "building.py").write_text(building)
    assert subprocess.run([sys.executable, program, DIGITS], check=False).returncode == -signal.SIGKILL
    assert len(list(place.glob(".trtopt.*"))) == 1
    assert (
        trtopt_cli("build", DIGITS, "-o", "out", "--backend", "onnxruntime", "--rewrite", "none").returncode
        == 0
    )
    assert list(place.glob(".trtopt*")) == []


def test_pipes_and_locks_of_others_next_to_the_output_are_not_waited_for(
    trtopt_cli: CommandLine, external_model: Path
) -> None:
    for name in (
        ".out.onnx.abcdefgh.trtopt-tmp",
        ".out.onnx.abcdefgh.trtopt-old",
        ".out.onnx.data.abcdefgh.trtopt-tmp",
    ):
        os.mkfifo(trtopt_cli.folder / name)
    before = sorted(trtopt_cli.folder.iterdir())
    handle = os.open(trtopt_cli.folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        for command, options in COMMANDS.items():
            done = trtopt_cli(command, external_model, "-o", "out.onnx", *options)
            assert done.returncode == 0, done.stderr
    finally:
        os.close(handle)
    made = {path.name for path in set(trtopt_cli.folder.iterdir()) - set(before)}
    assert {"out.onnx", "out.onnx.data"} <= made
    assert set(before) <= set(trtopt_cli.folder.iterdir())
