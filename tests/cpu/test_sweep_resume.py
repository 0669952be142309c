"""What makes a sweep go on: being told so, and results that an older trtopt named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import trtopt
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


def test_a_result_file_that_is_named_after_an_older_label_is_drawn_from(
    sequence_model: Path, tmp_path: Path
) -> None:
    folder, asked = tmp_path / "s", {"batch": (1,), "axes": {"x.1": (4,)}, **QUICK}
    (point,) = trtopt.sweep(sequence_model, folder, **asked).points
    assert point.label == "batch1 length=4"  # as the model calls it
    assert point.result is not None
    older = (folder / point.result).rename(folder / point.result.replace("length-4", "length4"))
    (again,) = trtopt.sweep(sequence_model, folder, **asked).points
    assert again == msgspec.structs.replace(point, result=older.relative_to(folder).as_posix())
    assert list((folder / "results").iterdir()) == [older]
