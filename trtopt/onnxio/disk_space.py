"""Disk space for temporary files: checked and noted before they are written."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from trtopt.errors import OutputError
from trtopt.printable import size_text

_NOTED_BYTES = 1 << 30
Note = Callable[[str], object]


def silent(note: str) -> None:
    """Drop the note."""


def check_output_room(out: Path, needed: int, note: Note = silent) -> None:
    """Check that the folder of `out` has room for so many bytes, and note it if they are many."""
    _check_room(out.parent, needed, note)


def check_temporary_room(needed: int, note: Note = silent) -> None:
    """Check that the system's temporary folder has room for so many bytes, and note it if they are many."""
    _check_room(Path(tempfile.gettempdir()), needed, note)


def _check_room(folder: Path, needed: int, note: Note) -> None:
    free = shutil.disk_usage(folder).free
    needs, has = size_text(needed), size_text(free)
    message = f"this takes up to {needs} of temporary files in {folder}, where {has} are free"
    if needed > free:
        raise OutputError(
            message,
            "free some space, or use another disk: -o for what is written, TMPDIR for what is temporary",
        )
    if needed >= _NOTED_BYTES:
        note(message)
