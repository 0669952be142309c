"""Temporary files and folders that a living process holds.

What is being made has a name that begins with a dot, and whoever makes it holds a lock on it (flock on the
file or folder itself, which the system lets go of when its process dies). So the next start can tell what a
killed run has left, and takes it away.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_RANDOM = 8  # characters that `tempfile` puts into a name

KILL_VARIABLE = "TRTOPT_TEST_KILL_AT"
"""Only tests set it: the step at which this process is to die at once; `NAME*N` for the Nth of that name."""
_passed: Counter[str] = Counter()


def step(name: str) -> None:
    """A step at which a crash must do no harm: tests kill the process here."""
    _passed[name] += 1
    wanted, _, number = os.environ.get(KILL_VARIABLE, "").partition("*")
    if wanted == name and _passed[name] == int(number or 1):
        os.kill(os.getpid(), signal.SIGKILL)


def held_file(path: Path) -> tuple[int, str]:
    """A temporary file for `path`, open and held."""
    while True:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        if _hold(handle, Path(temporary)):
            return handle, temporary
        os.close(handle)


def held_folder(final: Path) -> tuple[int, Path]:
    """A temporary folder for `final`, held as long as the descriptor is open."""
    while True:
        temporary = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".tmp", dir=final.parent))
        try:
            handle = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # taken for abandoned
            continue
        if _hold(handle, temporary):
            return handle, temporary
        os.close(handle)


def _hold(handle: int, path: Path) -> bool:
    """Mark what was just made as somebody's; False if another process has taken it for abandoned before."""
    with suppress(OSError):  # a file system without locks: there nothing is taken away either
        fcntl.flock(handle, fcntl.LOCK_SH)
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def remove_unfinished(path: Path) -> None:
    """Take away what killed runs have left of what was to be `path`."""
    with suppress(OSError):
        for left in path.parent.glob(f"{temporary_names(path)}.tmp"):
            _remove_if_abandoned(left)


def temporary_names(path: Path) -> str:
    """A pattern for the temporary names of what is to be `path`, but for their endings."""
    return f".{glob.escape(path.name)}.{'?' * _RANDOM}"


def _remove_if_abandoned(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(path)  # whoever has just made it waits for the lock, and then finds that it is gone
    except OSError:  # held, or no locks here
        pass
    finally:
        os.close(handle)


def umask() -> int:
    """The permissions that new files are not to have."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def remove(path: Path) -> None:
    """Take a file or a whole folder away."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from setting folders aside in `folder`; without locks, hope.

    A temporary folder is its maker's alone, who holds it: there is nobody to be kept from it, and whoever
    works in it would wait for themselves.
    """
    if folder.name.startswith(".") and folder.name.endswith(".tmp"):
        yield
        return
    handle: int | None = None
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def flush_names(folder: Path) -> None:
    """Have the names in a folder reach the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # not every file system can
            os.fsync(handle)
    finally:
        os.close(handle)
