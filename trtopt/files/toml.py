"""Untrusted TOML files, read in bounds (size, digits, depth), and where those shipped with trtopt are."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from trtopt.errors import UsageError
from trtopt.files.bounded_reading import read_bounded

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 32
_LONG_KEY = re.compile(rf"(?:[^.\n=]*\.){{{_MAX_DEPTH}}}[^\n=]*[=\]]")
"""A dotted key of so many parts: the parser's time grows with the square of their number."""


def read_toml(path: Path, remedy: str) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        content = read_bounded(path, _MAX_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})", remedy) from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}", remedy) from None
    try:
        text = content.decode("utf-8")
        if any(_LONG_KEY.match(line) for line in text.splitlines()):
            raise UsageError(f"{path}: a key has more than {_MAX_DEPTH} parts", remedy)
        return tomllib.loads(text)
    except RecursionError:
        raise UsageError(f"{path}: not TOML: nested too deeply", remedy) from None
    except ValueError as error:  # TOML, UTF-8 and numbers without end
        raise UsageError(f"{path}: not TOML: {error}", remedy) from None


def shipped_folder(name: str) -> Path:
    """`profiles` or `models`: inside the installed package, or at the root of a checkout."""
    package = Path(__file__).parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
