"""Room for temporary files: how much they take is said beforehand, and refused where it is not there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from trtopt.errors import OutputError

_SAID_BYTES = 1 << 30
Note = Callable[[str], object]


def silent(note: str) -> None:
    """Hears of it and says nothing."""


def check_output_room(out: Path, needed: int, note: Note = silent) -> None:
    """See to it that the folder of `out` has room for so many bytes, and say so if they are many.

    Raises:
        OutputError: it has not.
    """
    _check_room(out.parent, needed, note, "write elsewhere with -o")


def check_temporary_room(needed: int, note: Note = silent) -> None:
    """See to it that the system's temporary folder has room for so many bytes, and say so if they are many.

    Raises:
        OutputError: it has not.
    """
    _check_room(Path(tempfile.gettempdir()), needed, note, "set TMPDIR to a folder that has more room")


def _check_room(folder: Path, needed: int, note: Note, otherwise: str) -> None:
    free = shutil.disk_usage(folder).free
    told = f"this takes up to {_gib(needed)} of temporary files in {folder}, where {_gib(free)} are free"
    if needed > free:
        raise OutputError(told, f"free some space, or {otherwise}")
    if needed >= _SAID_BYTES:
        note(told)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
