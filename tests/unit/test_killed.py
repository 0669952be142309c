"""Processes killed at named steps, and many of them on one folder: nothing half-made under a final name."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trtopt.holding import KILL_VARIABLE
from trtopt.workspace import (
    MANIFEST,
    folder_in_progress,
    remove_abandoned,
    write_atomically,
)

MAKE_FOLDER = """
import sys
from pathlib import Path
from trtopt.errors import OutputError
from trtopt.workspace import folder_in_progress, write_atomically
final, name, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for number in range(rounds):
    with folder_in_progress(final) as folder:
        for file in ("a", "b"):
            write_atomically(folder / file, f"{name} {number}".encode())
        write_atomically(folder / "manifest.json", b'{"schema": "trtopt.build/1"}')
"""
WRITE_FILE = """
import sys
from pathlib import Path
from trtopt.workspace import check_writable, write_atomically
check_writable(Path(sys.argv[1]))
write_atomically(Path(sys.argv[1]), sys.argv[2].encode())
"""
STEPS = (
    "folder begun",
    "file written",
    "folder filled",
    "earlier folder aside",
    "earlier folder replaced",
    "folder renamed",
)


def run(script: str, *arguments: object, kill_at: str = "") -> int:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = os.environ | {KILL_VARIABLE: kill_at}
    return subprocess.run(command, env=environment, timeout=60, check=False).returncode


def content(folder: Path) -> set[str]:
    """What the folder's files say; whoever made it wrote the same into both."""
    assert (folder / MANIFEST).is_file()
    return {(folder / name).read_text() for name in ("a", "b")}


@pytest.mark.parametrize("at", STEPS)
def test_a_folder_is_the_earlier_or_the_new_one_wherever_its_maker_is_killed(at: str, tmp_path: Path) -> None:
    final = tmp_path / "final"
    assert run(MAKE_FOLDER, final, "earlier", 1) == 0
    assert run(MAKE_FOLDER, final, "killed", 1, kill_at=at) == -signal.SIGKILL
    before = content(final) if final.exists() else set()
    assert before in ([{"earlier 0"}, set()] if at in STEPS[:4] else [{"killed 0"}])
    remove_abandoned(final)
    assert content(final) == (before or {"earlier 0"})  # what had stepped aside is back
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_a_file_is_the_earlier_one_if_its_writer_is_killed_before_the_rename(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("earlier")
    assert run(WRITE_FILE, file, "new", kill_at="file written") == -signal.SIGKILL
    assert file.read_text() == "earlier"
    assert len(list(tmp_path.glob(".file.*.tmp"))) == 1
    assert run(WRITE_FILE, file, "new") == 0
    assert file.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_a_living_process_is_making_is_left_alone(tmp_path: Path) -> None:
    final = tmp_path / "final"
    with folder_in_progress(final) as folder:
        (folder / "a").write_text("half")
        assert run(MAKE_FOLDER, final, "other", 1) == 0  # cleans up before it begins
        assert (folder / "a").read_text() == "half"
        (folder / MANIFEST).write_text('{"schema": "trtopt.build/1"}')
    assert (final / "a").read_text() == "half"
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


@pytest.mark.parametrize(
    "name", [".final.tmp", ".final.short.tmp", ".final.much_too_long.tmp", ".other.abcdefgh.tmp", "final.old"]
)
def test_files_of_other_names_are_not_taken_away(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("somebody's")
    remove_abandoned(tmp_path / "final")
    assert (tmp_path / name).read_text() == "somebody's"


def test_a_folder_aside_is_not_brought_back_over_one_that_is_there(tmp_path: Path) -> None:
    for name in ("final", ".final.abcdefgh.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST).write_text('{"schema": "trtopt.build/1"}')
        (tmp_path / name / "from").write_text(name)
    remove_abandoned(tmp_path / "final")
    assert (tmp_path / "final" / "from").read_text() == "final"
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


PROCESSES, ROUNDS = 8, 12


def test_processes_that_make_one_folder_at_once_leave_one_of_theirs_whole(tmp_path: Path) -> None:
    final = tmp_path / "final"
    codes: list[int] = []
    makers = [
        threading.Thread(target=lambda index=index: codes.append(run(MAKE_FOLDER, final, index, ROUNDS)))
        for index in range(PROCESSES)
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert codes == [0] * PROCESSES
    (said,) = content(final)
    assert said.endswith(f" {ROUNDS - 1}")
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_a_written_file_is_nobodys_any_more(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"content")
    remove_abandoned(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"content"


SCRATCH = """
from trtopt.workspace import scratch_folder, step
with scratch_folder() as folder:
    (folder / "file").touch()
    step("in scratch")
"""


def test_the_systems_temporary_folder_is_cleaned_of_what_killed_runs_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert run(SCRATCH, kill_at="in scratch") == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.stat().st_mode & 0o777 == 0o700
    assert run(SCRATCH) == 0
    assert list(tmp_path.iterdir()) == []
