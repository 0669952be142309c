"""Cells of a study: each a command within a budget of seconds, and a JSON file that is whole or not there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class OutOfTimeError(Exception):
    """The budget ended in the middle of a cell."""


class FailedError(Exception):
    """A command did not do what was asked."""


def run_python(
    name: str,
    words: Iterable[object],
    seconds: float,
    *,
    fine: tuple[int, ...] = (0,),
    environment: Mapping[str, str] | None = None,
) -> str:
    """What Python printed for these arguments; `name` is that of the command in an error.

    It runs in the current folder and imports this repository's trtopt.

    Raises:
        OutOfTimeError: it did not end in `seconds`, and is killed with all that it started.
        FailedError: its exit code is none of `fine`.
    """
    variables = dict(os.environ if environment is None else environment)
    folders = [str(ROOT), *filter(None, [variables.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, *map(str, words)], text=True, start_new_session=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=variables | {"PYTHONPATH": os.pathsep.join(folders)},
    )  # fmt: skip
    try:
        printed, errors = process.communicate(timeout=max(0.0, seconds))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise OutOfTimeError from None
    if process.returncode not in fine:
        raise FailedError(f"{name}: exit code {process.returncode}: {errors[-2000:].strip()}")
    return printed


def read(place: Path) -> dict[str, Any]:
    """A cell's file; empty if it is not there."""
    found: dict[str, Any] = json.loads(place.read_text()) if place.is_file() else {}
    return found


def write(place: Path, cell: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    scratch = place.with_suffix(".part")
    scratch.write_text(json.dumps(cell, indent=1) + "\n")
    scratch.replace(place)
