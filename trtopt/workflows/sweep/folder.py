"""The folder of a sweep: who may write to it, what of it is to be believed, and how it is written.

    sweep.json, sweep.csv   the points, after every one of them;
    graphs/PRECISION/       the model in that precision, prepared once;
    builds/PRECISION…/      a build folder with an engine for each batch size;
    results/POINT-KEY.json  the result file of a point, raw samples included

A result file that carries a point's key is what makes a point measured; `sweep.json` is drawn from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtopt.errors import ArtifactError, OutputError, WrongPathError
from trtopt.files.atomic import write_atomically
from trtopt.files.bounded_reading import read_bounded, reason_of
from trtopt.files.locks import lock
from trtopt.files.temporary import is_temporary, remove_if_abandoned
from trtopt.measure.analysis.sweep_table import csv_of
from trtopt.records import SweepReport, SweepTerms, read_versioned, to_json
from trtopt.workflows.invocation import command_line, now
from trtopt.workflows.same_terms import check_same_terms

REPORT = "sweep.json"
TABLE = "sweep.csv"


def is_sweep(folder: Path) -> bool:
    """Whether a folder is a sweep's, in whatever state."""
    return (folder / REPORT).is_file()


def read_sweep(folder: Path) -> SweepReport:
    """The report of a sweep."""
    path = folder / REPORT if folder.is_dir() else folder
    try:
        if folder.is_dir() and path.exists() and not path.is_file():
            raise ValueError("not a regular file")  # a pipe would be waited for
        return read_versioned(read_bounded(path), SweepReport)
    except FileNotFoundError:
        raise WrongPathError(
            f"{folder}: not a sweep folder: there is no {REPORT}", "give a folder that `trtopt sweep -o` made"
        ) from None
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{path}: cannot be read as the report of a sweep: {reason_of(error)}",
            "sweep again into another folder",
        ) from None


def save_sweep(folder: Path, report: SweepReport) -> None:
    """Write the report and its table."""
    write_atomically(folder / REPORT, to_json(report))
    write_atomically(folder / TABLE, csv_of(report))


@contextmanager
def sweep_in_progress(folder: Path, model: str, terms: SweepTerms) -> Iterator[SweepReport]:
    """Hold a sweep's folder, new or to be continued; yields the report of what is there."""
    guard = folder / REPORT
    if not guard.exists() and _is_anything(folder):
        raise OutputError(
            f"{folder}: exists and is not a sweep folder", "choose another name with -o, or remove it"
        )
    with lock(guard, wait_s=0):
        if not guard.exists():
            report = SweepReport(created=now(), argv=command_line(), model=model, terms=terms)
            save_sweep(folder, report)
        else:
            report = read_sweep(folder)
            check_same_terms(f"{folder}: is a sweep", report.terms, terms)
            _remove_unfinished(folder)
        yield report


def _is_anything(folder: Path) -> bool:
    """Whether there is more than what a sweep leaves that was killed at once."""
    if not folder.is_dir():
        return folder.exists()
    return any(REPORT not in path.name for path in folder.iterdir())


def _remove_unfinished(folder: Path) -> None:
    """What a sweep that was killed had under temporary names."""
    for path in sorted(folder.rglob(".*.tmp")):
        if is_temporary(path):
            remove_if_abandoned(path)
