"""Runs `trtopt` in forks of a Python that has imported what takes it long: half a second less each time."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from trtopt.cli.main import main
from trtopt.processes.child import Child

_OF_PYTHON = ("PYTHON", "LC_", "LANG")
_TIME_LIMIT_S = 120


def run(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Run `trtopt` in `folder`; its exit status (as `subprocess` has it) and what it printed."""
    own = tuple(sorted(item for item in environment.items() if item[0].startswith(_OF_PYTHON)))
    template = _template(own)
    assert template.stdin is not None
    assert template.stdout is not None
    with TemporaryDirectory() as scratch:
        printed = [os.path.join(scratch, name) for name in ("stdout", "stderr")]
        cores = sorted(os.sched_getaffinity(0))
        template.stdin.write(json.dumps([arguments, str(folder), dict(environment), cores, printed]) + "\n")
        template.stdin.flush()
        status = int(template.stdout.readline())
        return status, *(Path(path).read_text() for path in printed)


@cache
def _template(of_python: tuple[tuple[str, str], ...]) -> subprocess.Popen[str]:
    """The Python that is forked; it ends when this one does. Python reads its variables as it starts."""
    others = {name: text for name, text in os.environ.items() if not name.startswith(_OF_PYTHON)}
    template = subprocess.Popen(
        [sys.executable, "-m", "tests.support.preloaded"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=others | dict(of_python),
        cwd=Path(__file__).parents[2],
    )
    atexit.register(_end, template)
    return template


def _end(template: subprocess.Popen[str]) -> None:
    with template:  # closes its pipes, at which it ends
        pass


def _serve() -> None:
    """Fork for each request, in a line of JSON, and answer with the status; returns in the forks alone.

    The commands import ONNX Runtime when they run it: it starts a thread, which a fork would lack.
    """
    for name in ("trtopt.cli", "trtopt.workflows", "trtopt.report"):
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(module.name)
    gc.freeze()
    first = sys.path.pop(0)  # each fork has another
    processes = [
        Child("trtopt.workers.worker"),
        Child("trtopt.device.ort.server"),
    ]  # forks share their server
    for process in processes:
        process.stop()
    sys.path.insert(0, first)
    for line in sys.stdin:
        if not (child := os.fork()):
            _become(*json.loads(line))
            return
        _, ended = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(ended), flush=True)
    sys.exit()


def _become(
    arguments: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    cores: Sequence[int],
    printed: Sequence[str],
) -> None:
    """Be as `python -m trtopt` would be if it were started there, with the output in files."""
    signal.alarm(_TIME_LIMIT_S)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, path in enumerate(printed, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.sched_setaffinity(0, cores)
    os.chdir(folder)
    sys.path[0] = os.getcwd()
    sys.argv = [str(Path(__file__).parents[2] / "trtopt" / "__main__.py"), *arguments]


def _leave(status: object) -> None:
    """End as Python does, but for taking all modules to pieces: that takes longer than a short command."""
    if isinstance(status, str):
        print(status, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status if isinstance(status, int) else status is not None)


if __name__ == "__main__":
    _serve()
    try:
        main()
    except SystemExit as ended:
        _leave(ended.code)
