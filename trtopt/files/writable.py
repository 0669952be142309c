"""Whether a result can be written, found out before the work."""

from __future__ import annotations

import tempfile
from pathlib import Path

from trtopt.errors import OutputError
from trtopt.files.atomic import cannot_write, check_regular
from trtopt.files.replace_folder import remove_abandoned


def check_writable(path: Path) -> None:
    """Find out before the work whether a result file can be written at `path`.

    Raises:
        OutputError: it cannot.
    """
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
