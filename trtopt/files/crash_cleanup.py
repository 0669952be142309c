"""What killed runs have left is taken away, and what they had set aside brought back."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from trtopt.files.manifests import is_build_folder, own_files
from trtopt.files.replace_folder import ASIDE, emptied
from trtopt.files.temporary import locked_folder, remove, remove_unfinished, temporary_names


def remove_abandoned(path: Path) -> None:
    """Take away what killed runs have left of `path`, and bring back what they had set aside for it.

    Raises:
        OutputError: there is such, and another process keeps its folder for itself.
    """
    remove_unfinished(path)
    if not _set_aside(path):
        return
    with locked_folder(path.parent), suppress(OSError):
        for aside in _set_aside(path):
            if not path.exists() and is_build_folder(aside):
                os.replace(aside, path)
            elif path.is_dir() and aside.is_dir():
                remove(emptied(aside, path, own_files(aside)))
            else:
                remove(aside)


def _set_aside(path: Path) -> list[Path]:
    found = path.parent.glob(f"{temporary_names(path)}.{ASIDE}")
    return [one for one in found if not one.is_symlink() and (one.is_dir() or one.is_file())]
