"""What is said of the deaths of processes."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from trtopt.processes import deaths
from trtopt.processes.deaths import cause_of_death, how_it_ended
from trtopt.workers import jobs

OWN = f"""Traceback (most recent call last):
  File "{deaths.__file__}", line 1, in main
    raise TypeError
TypeError
"""
FOREIGN = OWN.replace("TypeError\n", "").replace(
    "    raise ", '  File "/elsewhere/numpy/core.py", line 7, in at\nIndexError: 3'
)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-signal.SIGSEGV, "was ended by SIGSEGV"),
        (-signal.SIGRTMIN - 1, f"was ended by signal {signal.SIGRTMIN + 1}"),
        (0, "ended with status 0"),
        (7, "ended with status 7"),
    ],
)
def test_how_it_ended(status: int, words: str) -> None:
    assert how_it_ended(status) == words


@pytest.mark.parametrize(
    ("status", "printed", "starved", "told"),
    [
        (-signal.SIGSEGV, "", False, "a crash in native code, that of TensorRT or the plugin p.so;"),
        (-signal.SIGABRT, "terminate called", True, "a crash in native code, that of TensorRT or the plugin"),
        (-signal.SIGBUS, "", False, "a file that it read from was cut short"),
        (-signal.SIGKILL, "", True, "out of host memory: the kernel ended it"),
        (-signal.SIGKILL, "", False, "nothing in it does that: another process, or the kernel"),
        (-signal.SIGTERM, "", False, "another process sent it that signal"),
        (-signal.SIGXCPU, "", False, "ulimit -t"),
        (1, OWN, False, "a fault of trtopt's own: please report it"),
        (1, FOREIGN, False, "an error that /elsewhere/numpy/core.py raised"),
        (1, OWN.replace("\nTypeError", "\nMemoryError"), False, "out of host memory"),
        (7, "", False, "it was ended from within, by TensorRT or the plugin p.so"),
        (0, "", False, "it was ended from within, by TensorRT or the plugin p.so"),
    ],
)
def test_a_death_is_put_down_to_whom_it_is_known_of(
    status: int, printed: str, starved: bool, told: str
) -> None:
    native = ["TensorRT", "the plugin p.so"]
    assert cause_of_death(status, printed, native, starved=starved).startswith(told) or told == "ulimit -t"
    assert told in cause_of_death(status, printed, native, starved=starved)


def test_the_kernels_count_is_read_where_it_has_one() -> None:
    assert deaths.out_of_memory_kills() >= 0
    assert (deaths._control_group() / "memory.events").exists() or Path("/proc/vmstat").exists()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_nothing_that_a_repository_configures_runs_when_its_revision_is_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = f"touch {tmp_path / 'ran'}"
    (tmp_path / "hook").write_text(f"#!/bin/sh\n{run}\n")
    (tmp_path / "hook").chmod(0o755)
    as_somebody = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*as_somebody, *words], check=True)
    (tmp_path / ".git" / "config").write_text(
        f"""
[core]
    repositoryformatversion = 0
    fsmonitor = {tmp_path / "hook"}
    hooksPath = {tmp_path}
    pager = {run}
    sshCommand = {run}
[alias]
    rev-parse = !{run}
[pager]
    rev-parse = {run}
"""
    )
    assert len(jobs.git_revision() or "") == 40
    assert not (tmp_path / "ran").exists()
