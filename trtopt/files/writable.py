"""Whether a result can be written, found out before the work."""

from __future__ import annotations

import tempfile
from pathlib import Path

from trtopt.errors import OutputError, UsageError
from trtopt.files.atomic import cannot_write, check_regular
from trtopt.files.manifests import is_build_folder, own_files
from trtopt.files.replace_folder import remove_abandoned

_RECORDS = ("manifest.json", "sweep.json", "ledger.json")
"""What makes a folder a build, a sweep or a tuned build."""


def check_writable(path: Path) -> None:
    """Find out before the work whether a result file can be written at `path`.

    Raises:
        OutputError: it cannot.
        UsageError: a file of a build, a sweep or a tuned build is there.
    """
    if path.is_file() and (path.name in _RECORDS or path.name in _built(path.parent)):
        raise UsageError(f"{path}: belongs to a folder of trtopt's", "give another file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        check_regular(path)
    except OSError as error:
        raise cannot_write(path, error) from None
    if path.is_dir():
        raise OutputError(f"{path}: is a folder", "name a file")
    remove_abandoned(path)


def _built(folder: Path) -> set[str]:
    return own_files(folder) if is_build_folder(folder) else set()
