"""Bounded reading of untrusted files: limits on size, on waiting, and on the depth of TOML."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import select
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from trtopt.errors import ArtifactError, UsageError
from trtopt.records.base import OtherVersionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_BYTES = 1 << 30
"""For files without a narrower bound: results and profiles hold raw samples."""
_PIECE_BYTES = 1 << 20
_SILENCE_S = 60.0
"""How long a pipe may be silent."""
_ANNOUNCED_S = 1.0
_TOML_BYTES = 1 << 20
_TOML_DEPTH = 32
_LONG_KEY = re.compile(rf"(?:[^.\n=]*\.){{{_TOML_DEPTH}}}[^\n=]*[=\]]")
"""A dotted key of so many parts: the parser's time grows with the square of their number."""
_log = logging.getLogger(__name__)


def read_bounded(path: Path, limit: int = MAX_BYTES) -> bytes:
    """A file's content, if it is no larger than `limit`.

    The reported file size does not bound the content: files grow, and pipes and devices report 0. Pipes are
    read too, as a user may name one; reading ends if a pipe is silent for a minute.
    """
    pieces: list[bytes] = []
    with _opened(path) as file:
        status = os.fstat(file.fileno())
        expected, waits = status.st_size, not stat.S_ISREG(status.st_mode)
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
        raise ValueError(f"larger than the {limit >> 20} MiB allowed for it")
    return b"".join(pieces)


def open_regular(path: Path) -> BinaryIO:
    """A regular file, opened for reading: reading a pipe would block, and a device has no end."""
    file = _opened(path)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def _opened(path: Path) -> BinaryIO:
    """Open without waiting for a writer."""
    return open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def _wait_for(file: BinaryIO, path: Path) -> None:
    """Wait until there is something to read, or the end."""
    poll = select.poll()
    poll.register(file, select.POLLIN | select.POLLHUP)
    if not poll.poll(_ANNOUNCED_S * 1e3):
        _log.warning("waiting for data from %s", path)
        if not poll.poll((_SILENCE_S - _ANNOUNCED_S) * 1e3):
            raise OSError(errno.ETIMEDOUT, f"no data from it for {_SILENCE_S:.0f} s", str(path))


def reason_of(error: Exception) -> str:
    """Why a file was not read; system errors without number and path, which the message names already."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


@contextmanager
def reading_as(what: str, path: Path, remedy: str) -> Iterator[None]:
    """Read `path` as `what` it should be."""
    try:
        yield
    except OtherVersionError as error:
        raise ArtifactError(f"{path}: {error}", error.remedy) from None
    except (OSError, OverflowError, ValueError) as error:
        raise ArtifactError(f"{path}: cannot be read as {what}: {reason_of(error)}", remedy) from None


def sha256_of(*paths: Path) -> str:
    """The hash of a file; of several, one hash over their contents in order."""
    digest = hashlib.sha256()
    for path in paths:
        with open_regular(path) as file:
            while chunk := file.read(_PIECE_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def read_toml(path: Path, remedy: str) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        text = read_bounded(path, _TOML_BYTES).decode("utf-8")
        if any(_LONG_KEY.match(line) for line in text.splitlines()):
            raise ValueError(f"a key has more than {_TOML_DEPTH} parts")
        return tomllib.loads(text)
    except RecursionError:
        reason = "nested too deeply"
    except (OSError, ValueError) as error:  # TOML, UTF-8 and numbers without end
        reason = reason_of(error)
    raise UsageError(f"{path}: cannot be read as TOML: {reason}", remedy)


def shipped_folder(name: str) -> Path:
    """`profiles` or `models`: inside the installed package, or at the root of a checkout."""
    package = Path(__file__).parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
