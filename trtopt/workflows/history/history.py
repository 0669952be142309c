"""A history: a folder with the results of one model over time, each as `trtopt bench` wrote it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec

from trtopt.errors import ArtifactError, TrtoptError, UsageError
from trtopt.files.atomic import write_atomically
from trtopt.files.bounded_reading import read_bounded, reading_as
from trtopt.records import BenchReport, HistoryReport
from trtopt.requests.measure import HistoryAddRequest, HistoryRequest
from trtopt.workflows.compare.result_files import read_result
from trtopt.workflows.history.series import NamedResult, series_of

_DIGITS = 16
_AHEAD = timedelta(minutes=1)
"""By how much clocks of hosts may differ."""
_REMEDY = "add what `trtopt bench --json` wrote"


def add(request: HistoryAddRequest) -> tuple[Path, ...]:
    """Add the results to the folder; returns their files there.

    Each is a file of its own, named by its time and its content: writers do not meet, a result is in it once,
    and what was added is never changed.
    """
    return tuple(_keep(Path(path), Path(request.folder)) for path in request.results)


def _keep(path: Path, folder: Path) -> Path:
    kept, content = folder / _name(path), read_bounded(path)
    if not (kept.is_file() and read_bounded(kept) == content):  # a damaged one is replaced
        write_atomically(kept, content)
    return kept


def _name(path: Path) -> str:
    """A result's name in a history; later ones sort behind earlier ones."""
    created, digest = _read(path).created, hashlib.sha256(read_bounded(path)).hexdigest()
    return f"{created.replace(':', '-')}-{digest[:_DIGITS]}.json"


def history(request: HistoryRequest) -> HistoryReport:
    """Judge all that the folder holds, up to `result`; a damaged file is named and left out."""
    folder = Path(request.folder)
    last = None if request.result is None else _name(Path(request.result))
    if last is not None and not (folder / last).is_file():
        add_it = f"trtopt history add {folder} {request.result}"
        raise UsageError(f"{folder}: does not hold {request.result}", f"{add_it} adds it")
    series, notes = series_of(_results(folder, last))
    if not (series or notes):
        raise UsageError(f"{folder}: holds no results", f"trtopt history add {folder} bench.json adds one")
    return HistoryReport(folder=str(folder), series=series, notes=notes)


def _results(folder: Path, last: str | None) -> Iterator[NamedResult]:
    for path in sorted(folder.glob("*.json")):
        if last is None or path.name <= last:
            try:
                yield path.name, _read(path)
            except TrtoptError as error:
                yield path.name, error


def _read(path: Path) -> BenchReport:
    """A result with its time in UTC; one that is yet to come is refused."""
    report = read_result(path, _REMEDY)
    with reading_as("a result with a time", path, _REMEDY):
        created = datetime.fromisoformat(report.created).astimezone(timezone.utc)
    if created - datetime.now(timezone.utc) > _AHEAD:
        raise ArtifactError(
            f"{path}: it is of {report.created}, which is yet to come",
            "set the clocks of this host and of the one that measured it, and measure again",
        )
    return msgspec.structs.replace(report, created=created.isoformat(timespec="seconds"))
