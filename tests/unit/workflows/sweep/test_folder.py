"""The folder of a sweep."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.examples import sweep_terms
from trtopt.files.atomic import temporary_file
from trtopt.workflows.sweep.folder import sweep_in_progress


def test_a_sweep_that_goes_on_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with sweep_in_progress(folder, "m.onnx", sweep_terms()):
        (folder / "builds").mkdir()
    killed, abandoned = temporary_file(folder / "builds" / "result.json")
    os.close(killed)
    held, in_use = temporary_file(folder / "builds" / "result.json")
    (of_the_user := folder / "builds" / ".notes.tmp").write_text("mine")
    with sweep_in_progress(folder, "m.onnx", sweep_terms()):
        assert not abandoned.exists()
        assert in_use.exists()
        assert of_the_user.read_text() == "mine"
    os.close(held)
