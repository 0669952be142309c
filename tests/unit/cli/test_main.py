"""How a command ends: the exit code, whatever happens on the way out."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from trtopt.cli.main import _problem

ENDED = """
import os, signal, sys
from trtopt.cli import main as command_line
from trtopt.errors import DataError, DeviceError

def run(**options):
    try:
        os.kill(os.getpid(), int(sys.argv[1]))
    except SystemExit as error:  # as a user's own code may raise it
        raise DataError("the loader failed", "mend it") from error
    finally:
        raise {error}

command_line.cli.main = run
command_line.main()
"""


@pytest.mark.parametrize("error", ['DeviceError("no answer", "run it again")', "BrokenPipeError()"])
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_error_while_all_is_closed_does_not_hide_the_signal(
    number: signal.Signals, code: int, error: str
) -> None:
    command = [sys.executable, "-c", ENDED.replace("{error}", error), str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_python_ends_prints_no_traceback(number: signal.Signals) -> None:
    late = (
        f"import atexit, os, sys; atexit.register(os.kill, os.getpid(), {int(number)}); sys.argv[1:] = ['-V']"
    )
    command = [sys.executable, "-c", f"{late}; from trtopt.cli.main import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert (done.returncode, done.stderr) == (-number, "")


@pytest.mark.parametrize(("number", "remedy"), [(errno.EMFILE, "ulimit -n"), (errno.ENOENT, 'cd "$PWD"')])
def test_an_error_that_names_no_file_need_not_be_one_of_standard_output(number: int, remedy: str) -> None:
    assert remedy in _problem(OSError(number, os.strerror(number))).remedy
