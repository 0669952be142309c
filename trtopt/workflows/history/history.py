"""A history: a folder with the results of one model over time, each as `trtopt bench` wrote it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from trtopt.errors import TrtoptError, UsageError
from trtopt.files.atomic import write_atomically
from trtopt.files.bounded_reading import read_bounded
from trtopt.records import HistoryReport
from trtopt.requests.measure import HistoryAddRequest, HistoryRequest
from trtopt.workflows.compare.result_files import read_result
from trtopt.workflows.history.series import NamedResult, series_of

_DIGITS = 16
_REMEDY = "add what `trtopt bench --json` wrote"


def add(request: HistoryAddRequest) -> tuple[Path, ...]:
    """Add the results to the folder; returns their files there.

    Each is a file of its own, named by its time and its content: writers do not meet, a result is in it once,
    and what was added is never changed.
    """
    return tuple(_keep(Path(path), Path(request.folder)) for path in request.results)


def _keep(path: Path, folder: Path) -> Path:
    report, content = read_result(path, _REMEDY), read_bounded(path)
    digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
    kept = folder / f"{report.created.replace(':', '-')}-{digest}.json"
    if not kept.exists():
        write_atomically(kept, content)
    return kept


def history(request: HistoryRequest) -> HistoryReport:
    """Judge all that the folder holds; a damaged file is named and left out."""
    folder = Path(request.folder)
    notes: list[str] = []
    series, left_out = series_of(_results(folder, notes))
    if not (series or notes or left_out):
        raise UsageError(f"{folder}: holds no results", f"trtopt history add {folder} bench.json adds one")
    return HistoryReport(folder=str(folder), series=series, notes=(*notes, *left_out))


def _results(folder: Path, notes: list[str]) -> Iterator[NamedResult]:
    for path in sorted(folder.glob("*.json")):
        try:
            yield path.name, read_result(path, _REMEDY)
        except TrtoptError as error:
            notes.append(f"{path.name} is left out: {error.problem}")
