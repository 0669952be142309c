"""Reading files of strangers: as much as they can reasonably hold, and no more; nothing waits for ever."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import select
import stat
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 1 << 30
"""Of files that have no narrower bound: results and profiles hold raw samples."""
_PIECE_BYTES = 1 << 20
_SILENCE_S = 60.0
"""How long a pipe may give nothing."""
_ANNOUNCED_S = 1.0
_log = logging.getLogger(__name__)


def read_bounded(path: Path, limit: int = MAX_BYTES) -> bytes:
    """A file's content, if it is no larger than it can reasonably be.

    The size that a file tells does not bound what is read: it may grow, and pipes and devices tell 0. A pipe
    is read too: somebody may have named one. One that gives nothing for a minute is given up.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger.
    """
    pieces: list[bytes] = []
    with _opened(path) as file:
        told = os.fstat(file.fileno())
        expected, waits = told.st_size, not stat.S_ISREG(told.st_mode)
        room = limit if expected <= limit else -1
        while room >= 0:
            if waits:
                _wait_for(file, path)
            if not (piece := file.read(min(expected, room) + 1)):
                break
            pieces.append(piece)
            room -= len(piece)
            expected = _PIECE_BYTES
    if room < 0:
        raise ValueError(f"larger than the {limit >> 20} MiB that it may have")
    return b"".join(pieces)


def open_regular(path: Path) -> BinaryIO:
    """A regular file, opened for reading: a pipe would be waited for, and a device has no end.

    Raises:
        OSError: there is none, or it is something else.
    """
    file = _opened(path)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return file


def _opened(path: Path) -> BinaryIO:
    """Opened without waiting for whoever may write to it."""
    return open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def _wait_for(file: BinaryIO, path: Path) -> None:
    """Wait until there is something to read, or the end.

    Raises:
        OSError: there is neither.
    """
    poll = select.poll()
    poll.register(file, select.POLLIN | select.POLLHUP)
    if not poll.poll(_ANNOUNCED_S * 1e3):
        _log.warning("waiting for what is to come through %s", path)
        if not poll.poll((_SILENCE_S - _ANNOUNCED_S) * 1e3):
            raise OSError(errno.ETIMEDOUT, f"nothing came through it for {_SILENCE_S:.0f} s", str(path))


def reason_of(error: Exception) -> str:
    """Why a file was not read; of the system's errors without their number and the path, told already."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def sha256_of(*paths: Path) -> str:
    """The hash of a file; of several, one hash over their contents in order."""
    digest = hashlib.sha256()
    for path in paths:
        with open_regular(path) as file:
            while chunk := file.read(_PIECE_BYTES):
                digest.update(chunk)
    return digest.hexdigest()
