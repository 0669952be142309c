"""The examples in the help of `trtopt.export`, which needs PyTorch, and `trtopt.plan`, which takes long."""

from pathlib import Path

import pytest

from tests.support.api_examples import example_files, run_example
from trtopt.records import BatchPlan


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the files that the examples name."""
    monkeypatch.chdir(tmp_path)
    return example_files(tmp_path)


def test_the_example_of_export_prints_what_the_help_shows(folder: Path) -> None:
    run_example("export")
    assert (folder / "exported.onnx").is_file()


def test_the_example_of_plan_prints_what_the_help_shows() -> None:
    run_example("sweep")
    (plan,) = (one for one in run_example("plan").values() if isinstance(one, BatchPlan))
    assert repr(plan).startswith("<BatchPlan: p99=500ms at 200 requests/s: 1 engine, 1 worker")
    assert "predicted" in plan.table()
    assert [row["figure"] for row in plan.rows()] == ["p50_ms", "p99_ms", "requests_per_s"]
