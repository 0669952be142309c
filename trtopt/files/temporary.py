"""What a living process holds: locks, and temporary files and folders.

Every lock is the system's (flock), which it lets go of when the process dies. What is being made has a name
that begins with a dot, and whoever makes it holds a lock on it. So the next start can tell what a killed run
has left, and takes it away. Waiting for another process is told after a second, and ends.
"""

from __future__ import annotations

import fcntl
import glob
import logging
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trtopt.errors import OutputError

WAIT_S = 600.0
"""How long another process is waited for."""
_ANNOUNCED_S = 1.0
_POLL_S = 0.05
_RANDOM = 8  # characters that make a temporary name unique
_log = logging.getLogger(__name__)


# ── locks ───────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def locked(path: Path, wait_s: float) -> Iterator[None]:
    """Hold the file `path` + `.lock`, which is there as long as somebody holds it.

    Raises:
        OutputError: another process holds it for longer than `wait_s`.
        OSError: it cannot be made, or is no regular file.
    """
    file = Path(f"{path}.lock")
    until = time.monotonic() + wait_s
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(f"{file.name} is no regular file")
            _take(handle, file, path, until, wait_s)
            if _is_at(handle, file):
                break
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its last holder took it away
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink()  # while it is held: whoever waits for it finds that, and makes another
        os.close(handle)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep other processes from setting folders aside in `folder`; without locks, hope.

    A temporary folder is its maker's alone, who holds it: there is nobody to be kept from it, and whoever
    works in it would wait for themselves.

    Raises:
        OutputError: another process holds the folder for ten minutes.
    """
    if folder.name.startswith(".") and folder.name.endswith(".tmp"):
        yield
        return
    handle: int | None = None
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if handle is not None:
            with suppress(OSError):
                _take(handle, folder, folder, time.monotonic() + WAIT_S, WAIT_S)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _take(handle: int, lock: Path, what: Path, until: float, wait_s: float) -> None:
    """Lock what is open.

    Raises:
        OutputError: another process holds it until then.
        OSError: there are no locks here.
    """
    announced = time.monotonic() + _ANNOUNCED_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        now = time.monotonic()
        if now >= until:
            held = f"has held its lock for {wait_s:.0f} s" if wait_s else "holds its lock"
            raise OutputError(
                f"{what}: another process {held}{_holder_of(handle)}",
                f"wait for that process or end it, and run this again; the lock is on {lock}",
            )
        if now >= announced:
            _log.warning("waiting for another process to let go of %s%s", lock, _holder_of(handle))
            announced = until
        time.sleep(min(_POLL_S, until - now))


def _holder_of(handle: int) -> str:
    """Who holds the lock on what is open, as far as the system tells."""
    told = os.fstat(handle)
    place = f"{os.major(told.st_dev):02x}:{os.minor(told.st_dev):02x}:{told.st_ino}"
    with suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text("ascii").splitlines():
            words = line.split()  # number, "FLOCK", "ADVISORY", "WRITE", process, place, from, to
            if len(words) > 5 and words[1] == "FLOCK" and words[5] == place and int(words[4]) > 0:
                name = Path(f"/proc/{words[4]}/comm").read_text("utf-8", errors="replace").strip()
                return f": process {words[4]} ({name})"
    return ""


def _is_at(handle: int, path: Path) -> bool:
    """Whether what is open still has that name."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


# ── temporary files and folders ─────────────────────────────────────────────────────────────────────────


def temporary_file(path: Path) -> tuple[int, Path]:
    """A temporary file for `path`, open and held; whoever the umask allows may read it.

    Raises:
        OSError: it cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    while True:
        temporary = temporary_path(path, "tmp")
        with suppress(FileExistsError):
            handle = os.open(temporary, flags, 0o666)
            if _hold(handle, temporary):
                return handle, temporary
            os.close(handle)


def temporary_folder(final: Path, mode: int) -> tuple[int, Path]:
    """A temporary folder for `final`, held as long as the descriptor is open; the umask is taken off `mode`.

    Raises:
        OSError: it cannot be made.
    """
    while True:
        temporary = temporary_path(final, "tmp")
        with suppress(FileExistsError):
            temporary.mkdir(mode)
            try:
                handle = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except FileNotFoundError:  # taken for abandoned
                continue
            if _hold(handle, temporary):
                return handle, temporary
            os.close(handle)


def temporary_path(path: Path, ending: str) -> Path:
    """A name beside `path` that nothing is likely to have; see `temporary_names`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(_RANDOM // 2)}.{ending}")


def temporary_names(path: Path) -> str:
    """A pattern for the temporary names of what is to be `path`, but for their endings."""
    return f".{glob.escape(path.name)}.{'?' * _RANDOM}"


def is_temporary(path: Path) -> bool:
    """Whether it has the name of a temporary file or folder of trtopt's."""
    return re.fullmatch(rf"\..+\.[a-z0-9_]{{{_RANDOM}}}\.tmp", path.name) is not None


def _hold(handle: int, path: Path) -> bool:
    """Mark what was just made as somebody's; False if another process has taken it for abandoned before."""
    with suppress(OSError):  # a file system without locks: there nothing is taken away either
        fcntl.flock(handle, fcntl.LOCK_SH)
    return _is_at(handle, path)


def remove_unfinished(path: Path) -> None:
    """Take away what killed runs have left of what was to be `path`."""
    with suppress(OSError):
        for left in path.parent.glob(f"{temporary_names(path)}.tmp"):
            remove_if_abandoned(left)


def remove_if_abandoned(path: Path) -> None:
    """Take a temporary file or folder away, unless somebody holds it; anything else is left alone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    try:
        kind = os.fstat(handle).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(path)  # whoever has just made it finds that it is gone
    except OSError:  # held, or no locks here
        pass
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Take a file or a whole folder away."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def flush_names(folder: Path) -> None:
    """Have the names in a folder reach the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # not every file system can
            os.fsync(handle)
    finally:
        os.close(handle)
