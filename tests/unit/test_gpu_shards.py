"""The runner of the GPU tests, on tests that need no GPU: what it records, and where it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

RUNNER = Path(__file__).parents[1] / "gpu" / "run_shards.py"
QUICK = """
import pytest
@pytest.mark.parametrize("number", [1, 2])
def test_quick(number): pass
@pytest.mark.skip(reason="needs two GPUs")
def test_skipped(): pass
"""
BROKEN = """
def test_wrong(): assert 1 == 2
def test_right(): pass
"""
HANGING = """
import time
def test_before(): pass
def test_hangs(): time.sleep(600)
def test_after(): pass
"""
DYING = """
import os
def test_dies(): os._exit(7)
def test_after(): pass
"""
COUNTED = """
import pathlib
def test_counted():
    with pathlib.Path("runs").open("a") as file: file.write("x")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with tests of its own."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def command(out: str = "out", revision: str = "r1", **options: object) -> list[str]:
    words = [sys.executable, str(RUNNER), "--out", out, "--revision", revision]
    return words + [str(word) for name, value in options.items() for word in (f"--{name}", value)] + ["."]


def run(project: Path, **options: Any) -> tuple[int, str]:
    done = subprocess.run(command(**options), cwd=project, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def outcomes(project: Path) -> dict[str, str]:
    records = json.loads((project / "out" / "tests.json").read_text())
    return {test: record["outcome"] for test, record in records.items()}


def test_what_passed_at_a_revision_is_not_run_again_and_at_another_it_is(project: Path) -> None:
    (project / "test_counted.py").write_text(COUNTED)
    (project / "test_quick.py").write_text(QUICK)
    assert run(project)[0] == 0
    record = json.loads((project / "out" / "tests.json").read_text())["test_counted.py::test_counted"]
    assert record["revision"] == "r1"
    assert {"outcome", "seconds", "device", "tensorrt", "date"} <= set(record)
    assert outcomes(project) == {
        "test_counted.py::test_counted": "passed",
        "test_quick.py::test_quick[1]": "passed",
        "test_quick.py::test_quick[2]": "passed",
        "test_quick.py::test_skipped": "skipped",
    }
    assert run(project)[0] == 0
    assert (project / "runs").read_text() == "x"
    assert run(project, revision="r2")[0] == 0
    assert (project / "runs").read_text() == "xx"


@pytest.mark.parametrize("change", [{"device": "NVIDIA Other"}, {"visible": "7"}])
def test_what_other_gpus_skipped_runs_here_and_what_they_passed_does_not(
    change: dict[str, str], project: Path
) -> None:
    (project / "test_counted.py").write_text(COUNTED + "def test_other(): test_counted()")
    run(project)
    place = project / "out" / "tests.json"
    records = json.loads(place.read_text())
    for record in records.values():
        record |= change
    records["test_counted.py::test_other"]["outcome"] = "skipped"
    place.write_text(json.dumps(records))
    assert run(project)[0] == 0
    assert (project / "runs").read_text() == "xxx"


def test_one_that_hangs_is_killed_and_the_rest_of_its_file_runs(project: Path) -> None:
    (project / "test_hanging.py").write_text(HANGING)
    code, said = run(project, limit=2)
    assert code == 1
    assert outcomes(project) == {
        "test_hanging.py::test_before": "passed",
        "test_hanging.py::test_hangs": "timed out",
        "test_hanging.py::test_after": "passed",
    }
    assert "timed out  test_hanging.py::test_hangs" in said


def test_failures_crashes_and_files_that_cannot_be_imported_are_told_and_end_nothing(project: Path) -> None:
    (project / "test_broken.py").write_text(BROKEN)
    (project / "test_dying.py").write_text(DYING)
    (project / "test_unreadable.py").write_text("import no_such_module\n")
    (project / "test_quick.py").write_text(QUICK)
    assert run(project)[0] == 1
    found = outcomes(project)
    assert found["test_broken.py::test_wrong"] == "failed"
    assert found["test_dying.py::test_dies"] == "crashed"
    assert found["test_unreadable.py"] == "failed"
    passed = {test for test, outcome in found.items() if outcome == "passed"}
    assert passed >= {
        "test_broken.py::test_right",
        "test_dying.py::test_after",
        "test_quick.py::test_quick[1]",
    }
    records = json.loads((project / "out" / "tests.json").read_text())
    assert "assert 1 == 2" in records["test_broken.py::test_wrong"]["message"]
    assert "no_such_module" in records["test_unreadable.py"]["message"]


def test_what_the_budget_cuts_off_is_no_failure_and_comes_again(project: Path) -> None:
    (project / "test_hanging.py").write_text(HANGING)
    code, _ = run(project, budget=6)
    assert code == 3
    assert outcomes(project).get("test_hanging.py::test_hangs") in (None, "cut off")  # None: a slow machine
    (project / "test_hanging.py").write_text(HANGING.replace("600", "0"))
    assert run(project)[0] == 0


def test_a_killed_runner_loses_nothing_and_leaves_nothing_running(project: Path) -> None:
    (project / "test_counted.py").write_text(COUNTED)
    (project / "test_hanging.py").write_text(HANGING.replace("time.sleep(600)", "here()") + WITNESS)
    process = subprocess.Popen(command(), cwd=project, stdout=subprocess.DEVNULL)
    witness = project / "pid"
    while not witness.is_file() or not witness.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    pid = int(witness.read_text())
    while is_running(pid):
        time.sleep(0.05)
    (project / "test_hanging.py").write_text(HANGING.replace("600", "0"))
    assert run(project)[0] == 0
    assert (project / "runs").read_text() == "x"


WITNESS = """
def here():
    import os, pathlib
    pathlib.Path("pid").write_text(str(os.getpid()))
    time.sleep(600)
"""


def is_running(pid: int) -> bool:
    """A zombie is not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
