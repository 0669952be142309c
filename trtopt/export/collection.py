"""Where the model collection lies, what it holds, and how a name finds its file."""

from __future__ import annotations

import difflib
from pathlib import Path

from trtopt.errors import UsageError
from trtopt.files.shipped import shipped_folder


def folder() -> Path:
    """The folder of the model files."""
    return shipped_folder("models")


def files() -> dict[str, Path]:
    """Every model's file by its name, sorted."""
    return {path.stem: path for path in sorted(folder().glob("*.toml"))}


def find(name: str) -> Path:
    """The file of a model of the collection, or the model file that `name` is the path of."""
    if name.endswith(".toml"):
        return Path(name)
    known = files()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(
        f"no model is named {name!r}",
        f"{hint}`trtopt models` lists them; a model of your own is a TOML file, FILE.py:callable or "
        "package.module:callable",
    )
