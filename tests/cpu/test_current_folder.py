"""A Python file in the current folder that is called like a module runs in no process of trtopt's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import DIGITS
from tests.support.long import few

SCRIPT = Path(sys.executable).with_name("trtopt")
COMMANDS = {
    "build": (DIGITS, "-o", "out", "--backend", "onnxruntime"),
    "bench": (DIGITS, "--backend", "onnxruntime", "--duration", "0.05", "--warmup", "0.01"),
    "rewrite": (DIGITS, "-o", "out.onnx"),
    "check": (DIGITS, "--against", DIGITS),
}


@pytest.mark.skipif(not SCRIPT.exists(), reason="needs the installed script")
@pytest.mark.parametrize("command", few("bench", "rewrite", of=COMMANDS))
def test_a_file_called_like_a_module_does_not_run(command: str, tmp_path: Path) -> None:
    names = ("msgspec", "numpy", "onnxruntime", "ml_dtypes", "json", "trtopt", "sitecustomize", "encodings")
    for name in names:
        (tmp_path / f"{name}.py").write_text("open('ran', 'a').write(__name__)\n")
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [SCRIPT, command, *map(str, COMMANDS[command])],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()
