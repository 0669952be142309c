"""Files that appear whole or not at all, and folders for what is not yet done."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtopt.errors import OutputError
from trtopt.files.temporary import remove_unfinished, temporary_file, temporary_folder


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a temporary name beside `path`, flush it to disk and rename it.

    What killed runs have left of it is taken away.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_regular(path)
        remove_unfinished(path)
        handle, temporary = temporary_file(path)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_regular(path: Path) -> None:
    """A file may be replaced; a device or a pipe is somebody's way to something else."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "not a regular file")


def cannot_write(path: Path, error: OSError) -> OutputError:
    """The error for an output that the operating system refused."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OutputError(f"{path}: no space left to write it", "free some space, or choose another place")
    reason = error.strerror or str(error)
    return OutputError(f"{path}: cannot be written ({reason})", "choose another place")


@contextmanager
def scratch_beside(final: Path, mode: int = 0o700) -> Iterator[Path]:
    """A temporary folder on the same disk as `final`, which need not be there; goes when the block ends.

    Only its owner may enter it, unless `mode` says otherwise. What killed runs have left of such folders is
    taken away first.
    """
    remove_unfinished(final)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = temporary_folder(final, mode)
    except OSError as error:
        raise cannot_write(final, error) from None
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
