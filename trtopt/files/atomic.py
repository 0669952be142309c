"""Files that appear whole or not at all: locks, temporary names, and what killed runs left.

Every lock is the system's (flock), which releases it when the process dies. An unfinished file has a name
that begins with a dot, and the process that writes it holds a lock on it. So the next start recognises
leftovers of a killed run and removes them. Waiting for another process is reported after a second, and ends.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import logging
import os
import re
import secrets
import shutil
import signal
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from trtopt.errors import OutputError

WAIT_S = 600.0
"""How long to wait for another process."""
_ANNOUNCED_S = 1.0
_POLL_S = 0.05
_RANDOM = 8  # characters that make a temporary name unique
_OWN = "trtopt-"  # others name their files .NAME.20260101.old, and by mkstemp
_log = logging.getLogger(__name__)


# ── locks ───────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def lock(path: Path, wait_s: float | None = None) -> Iterator[None]:
    """Hold `path` + `.lock`, a file that exists as long as a process holds it, against other processes."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, file = _taken(path, WAIT_S if wait_s is None else wait_s)
    try:
        yield
    finally:
        with suppress(OSError):
            if not os.fstat(handle).st_size:  # what holds something is somebody else's
                file.unlink()  # while locked: a waiting process notices and creates another
        os.close(handle)


def _taken(path: Path, wait_s: float) -> tuple[int, Path]:
    """The lock's file, open and locked."""
    file, until = Path(f"{path}.lock"), time.monotonic() + wait_s
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(f"{file.name} is not a regular file")
            _take(handle, file, path, until, wait_s)
            if _is_at(handle, file):
                return handle, file
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its last holder removed it


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep other processes from renaming folders in `folder`; without file locks this has no effect.

    A temporary folder is not locked again: its process holds it already, and would wait for itself.
    """
    with ExitStack() as opened:
        if not is_temporary(folder):
            with suppress(OSError):
                handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                opened.callback(os.close, handle)
                _take(handle, folder, folder, time.monotonic() + WAIT_S, WAIT_S)
        yield


def _take(handle: int, lock: Path, what: Path, until: float, wait_s: float) -> None:
    """Lock an open file."""
    announced = time.monotonic() + _ANNOUNCED_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        now = time.monotonic()
        if now >= until:
            state = f"has held its lock for {wait_s:.0f} s" if wait_s else "holds its lock"
            raise OutputError(
                f"{what}: another process {state}{_holder_of(handle)}",
                f"wait for that process or end it, and run this again; the lock is on {lock}",
            )
        if now >= announced:
            _log.warning("waiting for another process to release %s%s", lock, _holder_of(handle))
            announced = until
        time.sleep(min(_POLL_S, until - now))


def _holder_of(handle: int) -> str:
    """The process that holds the lock on an open file, as far as the system reports it."""
    status = os.fstat(handle)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text("ascii").splitlines():
            fields = line.split()  # number, "FLOCK", "ADVISORY", "WRITE", process, place, from, to
            if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == place and int(fields[4]) > 0:
                name = Path(f"/proc/{fields[4]}/comm").read_text("utf-8", errors="replace").strip()
                return f": process {fields[4]} ({name})"
    return ""


def _is_at(handle: int, path: Path) -> bool:
    """Whether the open file still has that name."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


# ── temporary files and folders ─────────────────────────────────────────────────────────────────────────


def make_temporary(path: Path, folder_mode: int | None = None) -> tuple[int, Path]:
    """A temporary file for `path`, open and locked; with a mode, from which the umask is taken, a folder."""
    is_folder = folder_mode is not None
    kind = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR | os.O_CREAT | os.O_EXCL
    while True:
        temporary = temporary_path(path, "tmp")
        with suppress(FileExistsError):
            if folder_mode is not None:
                temporary.mkdir(folder_mode)
            try:
                handle = os.open(temporary, kind | os.O_NOFOLLOW, 0o666)
            except FileNotFoundError:
                if is_folder:  # another process has removed it as abandoned
                    continue
                raise
            with suppress(OSError):  # a file system without locks: there nothing is removed either
                fcntl.flock(handle, fcntl.LOCK_SH)
            if _is_at(handle, temporary):
                return handle, temporary
            os.close(handle)


def temporary_path(path: Path, ending: str) -> Path:
    """A random name next to `path`; see `temporary_names`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(_RANDOM // 2)}.{_OWN}{ending}")


def temporary_names(path: Path) -> str:
    """A pattern for temporary names of `path`, without their endings."""
    return f".{glob.escape(path.name)}.{'?' * _RANDOM}.{_OWN}"


def is_temporary(path: Path) -> bool:
    """Whether it has the name of a temporary file or folder of trtopt."""
    return re.fullmatch(rf"(?s)\..+\.[a-z0-9_]{{{_RANDOM}}}\.{_OWN}tmp", path.name) is not None


def remove_unfinished(path: Path) -> None:
    """Remove temporary files for `path` that killed runs left."""
    with suppress(OSError):
        for leftover in path.parent.glob(f"{temporary_names(path)}tmp"):
            remove_if_abandoned(leftover)


def remove_if_abandoned(path: Path, is_doomed: Callable[[], bool] = lambda: True) -> None:
    """Remove a file or folder unless a process holds it, or `is_doomed`, asked while none does, says no."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    try:
        kind = os.fstat(handle).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_doomed():
            remove(path)  # a process that has just created it notices
    except OSError:  # locked, or no locks on this file system
        pass
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file or a whole folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def flush_names(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # not every file system supports it
            os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a temporary name beside `path`, flush it to disk and rename it."""
    with writing(path), ExitStack() as made:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_regular(path)
        os.replace(write_beside(path, [content], made), path)


def write_beside(path: Path, chunks: Iterable[Any], made: ExitStack) -> Path:
    """Write next to `path` under a temporary name, which `made` removes, and flush to the disk.

    What killed runs have left of it is taken away.
    """
    remove_unfinished(path)
    handle, temporary = make_temporary(path)
    made.callback(temporary.unlink, missing_ok=True)
    with suppress(OSError):  # what is replaced may be for fewer to read than the umask says, or for more
        os.fchmod(handle, stat.S_IMODE(path.stat().st_mode))
    file = made.enter_context(os.fdopen(handle, "wb"))
    for chunk in chunks:
        file.write(memoryview(chunk))
    file.flush()
    os.fsync(handle)
    return temporary


def replace_together(moves: Sequence[tuple[Path, Path]]) -> None:
    """Rename complete files in turn, by a child process: a kill of this one in between does not part them.

    After an error those already renamed stay so.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():  # of forks beside threads: the child does nothing but system calls
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                child = os.fork()
            except OSError:  # no memory for another process
                child = -1
        if child == 0:
            status = 1
            try:
                os.setsid()
                _replace_all(moves)
                status = 0
            except OSError as error:
                status = error.errno or status
            finally:
                os._exit(status)
        if child > 0:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status:
                raise OSError(
                    abs(status), os.strerror(status) if status > 0 else "what renames it was killed"
                )
        else:
            _replace_all(moves)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _replace_all(moves: Sequence[tuple[Path, Path]]) -> None:
    for new, path in moves:
        os.replace(new, path)


def check_regular(path: Path) -> None:
    """A file may be replaced; a device or a pipe is somebody's way to something else."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "not a regular file")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the operating system refuses inside is an output that cannot be written."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            more = "raise ulimit -f" if error.errno == errno.EFBIG else "free some space"
            problem, remedy = "no space left to write it", f"{more}, or choose another place"
        else:
            problem, remedy = f"cannot be written ({error.strerror or error})", "choose another place"
        raise OutputError(f"{path}: {problem}", remedy) from None


@contextmanager
def scratch_beside(final: Path, mode: int = 0o700) -> Iterator[Path]:
    """A temporary folder on the same disk as `final`, which need not be there; goes when the block ends.

    Only its owner may enter it, unless `mode` says otherwise. What killed runs have left of such folders is
    taken away first.
    """
    remove_unfinished(final)
    with writing(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = make_temporary(final, mode)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(handle)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder of the system's; see `scratch_beside`."""
    with scratch_beside(Path(tempfile.gettempdir()) / "trtopt") as folder:
        inner = folder / "work"  # `folder` itself is locked: a build in it would wait for ever
        inner.mkdir()
        yield inner


def link_or_copy(path: Path, target: Path) -> None:
    """Give a file another name, which is free, or copy it there."""
    try:
        os.link(path, target, follow_symlinks=False)
    except OSError:  # no links on this file system, or not to another user's file
        shutil.copy2(path, target, follow_symlinks=False)
