"""Running `trtopt` as a user does, and what the tests in this folder share."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from tests.support import preloaded
from tests.support.paths import ROOT
from trtopt.device.cuda import probe

DIGITS = ROOT / "models" / "digits" / "digits.onnx"
HELDOUT = DIGITS.with_name("heldout.npz")

needs_no_gpu = pytest.mark.skipif(bool(probe.gpus()), reason="tells what happens where no GPU is")
needs_no_tensorrt = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt") is not None,
    reason="tells what happens where TensorRT is not installed",
)


class CommandLine:
    """Runs `trtopt` as a user does, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run to the end; output is captured as text."""
        command = [str(argument) for argument in arguments]
        done = preloaded.run(command, self.folder, os.environ | {"COLUMNS": "200"})
        return subprocess.CompletedProcess(command, *done)

    def fails(self, status: int, *arguments: str | Path) -> str:
        """Run; expect that status, no traceback and no new file. Returns the message."""
        before = sorted(self.folder.rglob("*"))
        done = self(*arguments)
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        assert sorted(self.folder.rglob("*")) == before
        return done.stderr
