"""A second name for a file, without its bytes where the file system allows."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def link_or_copy(path: Path, target: Path) -> None:
    """Give a file another name, which is free, or copy it there."""
    try:
        os.link(path, target, follow_symlinks=False)
    except OSError:  # no links on this file system, or not to another user's file
        shutil.copy2(path, target, follow_symlinks=False)
