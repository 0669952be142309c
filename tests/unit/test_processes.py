"""How processes are started, and what is said of their deaths."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import trtopt
from trtopt import processes
from trtopt.processes import cause_of_death, how_it_ended, python_command
from trtopt.workers import jobs

HOME = str(Path(trtopt.__file__).parents[1])
OWN = f"""Traceback (most recent call last):
  File "{processes.__file__}", line 1, in main
    raise TypeError
TypeError
"""
FOREIGN = OWN.replace("TypeError\n", "").replace(
    "    raise ", '  File "/elsewhere/numpy/core.py", line 7, in at\nIndexError: 3'
)


def seen_by_a_child(folder: Path) -> list[str]:
    """`sys.path` of a process that is started from `folder`."""
    (folder / "telling.py").write_text("import sys\ndef main(): print(*sys.path, sep='\\n')\n")
    done = subprocess.run(python_command("telling"), capture_output=True, text=True, check=True, cwd=folder)
    return done.stdout.splitlines()


@pytest.mark.parametrize("entry", ["", ".", "{here}"])
def test_the_current_folder_is_not_handed_on(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "modüles 'of' mine"
    here = tmp_path / "here"
    modules.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", sys.__spec__)  # as `python -m` has it
    monkeypatch.setattr(sys, "path", [entry.format(here=here), str(modules), *sys.path])
    (modules / "telling.py").write_text("import sys\ndef main(): print(ascii(sys.path))\n")
    done = subprocess.run(python_command("telling"), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ascii(sys.path[1:])


def test_the_folder_of_a_script_is_handed_on_wherever_it_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert seen_by_a_child(tmp_path) == sys.path


def test_the_current_folder_is_handed_on_where_pythonpath_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", sys.__spec__)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert seen_by_a_child(tmp_path) == sys.path


def test_the_current_folder_is_handed_on_where_trtopt_lies_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HOME)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "path", [HOME, "", *sys.path])
    command = python_command("trtopt.version")
    assert f"[{HOME!a}, " in command[-1]
    assert "''" not in command[-1]


def test_arguments_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "told.py").write_text("import sys\ndef main(): print(sys.argv[1:])\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    done = subprocess.run(python_command("told", "1", "a b"), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['1', 'a b']"


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
    assert processes.out_of_memory_kills() >= 0
    assert (processes._control_group() / "memory.events").exists() or Path("/proc/vmstat").exists()


def test_a_child_ends_with_its_parent_whatever_it_hangs_in(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(
        "import ctypes, os\nfrom trtopt.processes import end_with_parent\n"
        "def main():\n    end_with_parent()\n    os.write(1, b'x')\n    ctypes.PyDLL(None).sleep(1000)\n"
    )
    code = python_command("hanging")[-1].replace("sys.path[:] = [", f"sys.path[:] = [{str(tmp_path)!r}, ")
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.read(1) == b"x"
    process.stdin.close()
    assert process.wait(60) in (-signal.SIGKILL, 1)
    process.stdout.close()


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
