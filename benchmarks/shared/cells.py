"""Cells of a study: each a command within a budget of seconds, and a JSON file that is whole or not there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol, TypeVar

ROOT = Path(__file__).resolve().parents[2]


class OutOfTimeError(Exception):
    """The budget ended in the middle of a cell."""


class FailedError(Exception):
    """A command did not do what was asked."""


class Named(Protocol):
    """A cell, of which no more need be known than the name of its file."""

    @property
    def name(self) -> str:
        """Of its file, without the ending."""


_Cell = TypeVar("_Cell", bound=Named)


def chosen(cells: Iterable[_Cell], words: Sequence[str] | None) -> list[_Cell]:
    """Those whose name has one of `words`; all without any."""
    return [cell for cell in cells if not words or any(word in cell.name for word in words)]


def unmeasured(cells: Iterable[_Cell], out: Path) -> list[_Cell]:
    """Those without a file in `out` first, then those that failed."""
    cells = list(cells)
    missing = [cell for cell in cells if not place_of(cell, out).is_file()]
    return missing + [cell for cell in cells if "failed" in read(place_of(cell, out))]


def place_of(cell: Named, out: Path) -> Path:
    """The cell's file."""
    return out / f"{cell.name}.json"


def measure(
    cell: Named,
    out: Path,
    about: Mapping[str, Any],
    measured: Callable[[], Mapping[str, Any]],
    summary: Callable[[Mapping[str, Any]], object],
) -> None:
    """Write the cell's file: `about` it and what was measured or why that failed, with date and seconds.

    A cell in which the budget ends leaves no file.
    """
    began = time.monotonic()
    try:
        result = measured()
    except OutOfTimeError:
        print(f"{cell.name}: the budget is over", flush=True)
        return
    except FailedError as error:
        result = {"failed": str(error)}
    told = {**about, **result, "date": f"{datetime.now(timezone.utc):%Y-%m-%d}"}
    told["seconds"] = round(time.monotonic() - began, 1)
    write(place_of(cell, out), told)
    print(f"{cell.name}: {summary(told)} ({told['seconds']} s)", flush=True)


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
