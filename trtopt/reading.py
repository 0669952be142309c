"""Reading files of strangers: as much as they can reasonably hold, and no more."""

from __future__ import annotations

import os
from pathlib import Path

MAX_BYTES = 1 << 30
"""Of files that have no narrower bound: results and profiles hold raw samples."""
_PIECE_BYTES = 1 << 20


def read_bounded(path: Path, limit: int = MAX_BYTES) -> bytes:
    """A file's content, if it is no larger than it can reasonably be.

    The size that a file tells does not bound what is read: it may grow, and pipes and devices tell 0.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger.
    """
    pieces: list[bytes] = []
    with path.open("rb") as file:
        expected = os.fstat(file.fileno()).st_size
        room = limit if expected <= limit else -1
        while room >= 0 and (piece := file.read(min(expected, room) + 1)):
            pieces.append(piece)
            room -= len(piece)
            expected = _PIECE_BYTES
    if room < 0:
        raise ValueError(f"larger than the {limit >> 20} MiB that it may have")
    return b"".join(pieces)


def reason_of(error: Exception) -> str:
    """Why a file was not read; of the system's errors without their number and the path, told already."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
