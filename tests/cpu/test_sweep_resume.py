"""What makes a sweep go on: being told so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.command_line import DIGITS
from trtopt.cli.engines import sweep as sweep_command
from trtopt.workflows.sweep import sweep as sweeping

QUICK = {"duration": 0.1, "warmup": 0.01, "backend": "onnxruntime"}


def test_a_sweep_that_was_interrupted_says_that_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeping, "sweep", interrupted)
    done = CliRunner().invoke(sweep_command, [str(DIGITS), "-o", str(tmp_path / "s")])
    assert "run the same command again to continue after the measured points" in done.output
    assert done.exit_code == 1
