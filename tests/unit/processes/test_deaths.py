"""What is said of the deaths of processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from trtopt.processes import child
from trtopt.processes.child import cause_of_death, how_it_ended

OWN = f"""Traceback (most recent call last):
  File "{child.__file__}", line 1, in main
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
    assert child.out_of_memory_kills() >= 0
    assert (child._control_group() / "memory.events").exists() or Path("/proc/vmstat").exists()
