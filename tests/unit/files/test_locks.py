"""Locks: who waits is told, for how long is bounded, and no two are ever inside."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trtopt.errors import OutputError
from trtopt.files import atomic
from trtopt.files.atomic import lock, write_atomically
from trtopt.files.outputs import check_output, folder_in_progress, kind_beginning, remove_abandoned

ANY = kind_beginning("text", b"")
COUNT = """
import sys
from pathlib import Path
from trtopt.files.atomic import lock
path = Path(sys.argv[1])
for _ in range(int(sys.argv[2])):
    with lock(path):
        number = int(path.read_text())
        path.write_text("")  # who comes in between finds nothing
        path.write_text(str(number + 1))
"""
PROCESSES, ROUNDS = 6, 60


def test_processes_that_take_turns_lose_nothing_and_leave_no_lock(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("0")
    command = [sys.executable, "-c", COUNT, str(tmp_path / "number"), str(ROUNDS)]
    running = [subprocess.Popen(command) for _ in range(PROCESSES)]
    assert [one.wait(120) for one in running] == [0] * PROCESSES
    assert (tmp_path / "number").read_text() == str(PROCESSES * ROUNDS)
    assert [path.name for path in tmp_path.iterdir()] == ["number"]


def test_who_waited_while_the_lock_was_taken_away_waits_for_the_next_holder(tmp_path: Path) -> None:
    """The file that they opened is nobody's any more; whoever came since holds another of its name."""
    path, inside = tmp_path / "file", []
    entered, leave = threading.Event(), threading.Event()

    def wait_for_it() -> None:
        with lock(path):
            inside.append("waiter")

    def come_next() -> None:
        with lock(path):
            inside.append("next")
            entered.set()
            leave.wait(60)
            inside.append("next leaves")

    first = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(first, fcntl.LOCK_EX)
    waiter = threading.Thread(target=wait_for_it)
    waiter.start()
    Path(f"{path}.lock").unlink()
    following = threading.Thread(target=come_next)
    following.start()
    assert entered.wait(60)
    os.close(first)
    waiter.join(0.5)
    leave.set()
    for thread in (waiter, following):
        thread.join(60)
    assert inside.index("next leaves") == inside.index("next") + 1


@contextmanager
def held_by_another(place: Path) -> Iterator[int]:
    """A process that holds a lock on a folder; its number."""
    script = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); "
    script += "print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        try:
            yield other.pid
        finally:
            other.kill()


def test_a_lock_on_the_outputs_parent_is_waited_for_within_bounds_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(atomic, "WAIT_S", 0.3)
    monkeypatch.setattr(atomic, "_ANNOUNCED_S", 0.1)
    with (
        held_by_another(tmp_path) as pid,
        caplog.at_level(logging.WARNING, "trtopt"),
        pytest.raises(OutputError) as caught,
        folder_in_progress(tmp_path / "out"),
    ):
        pytest.fail("it was let begin")
    assert "another process has held its lock" in caught.value.problem
    assert str(tmp_path) in caught.value.remedy
    assert [record.message.partition(" to release")[0] for record in caplog.records] == [
        "waiting for another process"
    ]
    if Path("/proc/locks").read_text():  # where the system tells
        assert f"process {pid} " in caught.value.problem
    assert list(tmp_path.iterdir()) == []


def test_who_needs_no_lock_waits_for_none(tmp_path: Path) -> None:
    with held_by_another(tmp_path):
        write_atomically(tmp_path / "file", b"content")
        check_output(tmp_path / "file", ANY)
        remove_abandoned(tmp_path / "folder")
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize("ending", ["tmp", "old"])
def test_pipes_with_temporary_names_are_not_opened_and_stay(ending: str, tmp_path: Path) -> None:
    pipe = tmp_path / f".file.abcdefgh.trtopt-{ending}"
    os.mkfifo(pipe)
    check_output(tmp_path / "file", ANY)
    write_atomically(tmp_path / "file", b"content")
    remove_abandoned(tmp_path / "file")
    assert pipe.is_fifo()


def test_a_pipe_in_the_place_of_a_lock_or_an_output_is_refused(tmp_path: Path) -> None:
    for name in ("file.lock", "out"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(OutputError, match="not a regular file"), lock(tmp_path / "file"):
        pytest.fail("it was let in")
    for write in (lambda path: check_output(path, ANY), lambda path: write_atomically(path, b"content")):
        with pytest.raises(OutputError, match="not a regular file"):
            write(tmp_path / "out")
    assert (tmp_path / "out").is_fifo()


def test_many_threads_make_files_whom_the_umask_allows(tmp_path: Path) -> None:
    """The umask is the process's: whoever learns it by setting it opens what others make to all."""
    before = os.umask(0o027)
    try:
        done = threading.Event()
        writers = [
            threading.Thread(target=lambda at=at: _write_until(done, tmp_path / f"own {at}"))
            for at in range(4)
        ]
        for writer in writers:
            writer.start()
        modes = set()
        for number in range(2000):
            handle = os.open(tmp_path / f"{number}", os.O_CREAT | os.O_WRONLY, 0o666)
            modes.add(os.fstat(handle).st_mode & 0o777)
            os.close(handle)
        done.set()
        for writer in writers:
            writer.join()
    finally:
        os.umask(before)
    assert modes == {0o640}


def _write_until(done: threading.Event, path: Path) -> None:
    while not done.is_set():
        write_atomically(path, b"content")
