"""Python whose process dies (SIGKILL) just before one of its calls that change files.

`python killing.py CALLS NUMBER …` goes on as `python …` does, and dies before call NUMBER of those named.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from trtopt.processes.child import Child

ALL = "replace,link,mkdir,rmdir,unlink,fsync,exchange"


def run_killed(calls: str, number: int, *arguments: str, **options: Any) -> int:
    """Run Python with these arguments, to die at that call; returns how it ended."""
    command = [sys.executable, __file__, calls, str(number), *arguments]
    return subprocess.run(command, timeout=120, check=False, capture_output=True, **options).returncode


def run_fork_killed(calls: str, number: int, function: Callable[..., None], *arguments: str) -> int:
    """Run a function of a module in a fork, to die at that call; returns how it ended."""
    module = function.__module__
    fork = Child(__name__, calls, str(number), module, function.__name__, *arguments, preload=[module])
    try:
        status = fork.wait(120)
        assert status is not None
        assert status <= 0, fork.printed()
        return status
    finally:
        fork.stop()


def main(channel: socket.socket, calls: str, number: str, module: str, name: str, *arguments: str) -> None:
    """Run that function, to die at that call."""
    _die_at(calls, int(number))
    getattr(sys.modules[module], name)(*arguments)


def _before(call: Callable[..., Any], passed: Callable[[], None]) -> Callable[..., Any]:
    def called(*arguments: Any, **options: Any) -> Any:
        passed()
        return call(*arguments, **options)

    return called


def _die_at(calls: str, number: int) -> None:
    counted, victim = count(1), os.getpid()

    def passed() -> None:
        if next(counted) == number:
            os.kill(victim, signal.SIGKILL)

    import trtopt.files.outputs

    places: Mapping[str, tuple[Any, str]] = {"exchange": (trtopt.files.outputs, "_exchanged")}
    for name in calls.split(","):
        module, attribute = places.get(name, (os, name))
        setattr(module, attribute, _before(getattr(module, attribute), passed))
    assert shutil.rmtree  # its own choice of functions is made when it is imported


if __name__ == "__main__":
    _, calls, number, kind, what, *rest = sys.argv
    _die_at(calls, int(number))
    if kind == "-m":
        sys.argv = [what, *rest]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *rest]
        exec(what, {"__name__": "__main__"})
