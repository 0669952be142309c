"""The calibration table: made from histograms, read back from a file that a person may have edited."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from trtopt.errors import ArtifactError, UsageError
from trtopt.files.bounded_reading import read_bounded
from trtopt.files.outputs import Kind
from trtopt.precision.calibration.histogram import Histogram
from trtopt.precision.calibration.methods import METHODS, all_amax
from trtopt.records import from_json, to_json
from trtopt.records.precision import CALIBRATION_SCHEMA, CalibrationTable, TensorRange

MAX = "max"
AUTO: Literal["auto"] = "auto"
_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float32).tiny)


TABLE_SUFFIX = ".calibration.json"


def table_beside(model: Path) -> Path:
    """Where the calibration table of a model goes."""
    return model.with_name(model.name + TABLE_SUFFIX)


def table_text(table: CalibrationTable) -> bytes:
    """A table's file, with the hash of the rest: one that somebody has edited shows that."""
    bare = msgspec.structs.replace(table, sha256="")
    return to_json(msgspec.structs.replace(bare, sha256=hashlib.sha256(to_json(bare)).hexdigest()))


def _is_unedited(path: Path) -> bool:
    text = read_bounded(path)
    try:
        return text == table_text(from_json(text, CalibrationTable))
    except ValueError:
        return False


TABLE = Kind("a calibration table", _is_unedited)


def ranges(seen: Mapping[str, Histogram]) -> dict[str, dict[str, float]]:
    """Every method's amax of every tensor."""
    return {name: all_amax(histogram) for name, histogram in seen.items()}


def chosen(amax: Mapping[str, Mapping[str, float]], method: str) -> dict[str, TensorRange]:
    """The table's rows with one method's values chosen."""
    return {name: TensorRange(chosen=row[method], amax=dict(row)) for name, row in amax.items()}


def by_group(rows: Mapping[str, float], groups: Iterable[frozenset[str]]) -> dict[str, float]:
    """amax by tensor where tensors of one group share the largest among them."""
    shared = dict(rows)
    for group in groups:
        largest = max((rows[name] for name in group if name in rows), default=0.0)
        shared |= {name: largest for name in group if name in rows}
    return shared


def check_method(method: str) -> None:
    """Refuse a method that does not exist."""
    if method not in (*METHODS, AUTO):
        raise UsageError(f"--method {method}: unknown", f"choose one of {', '.join((AUTO, *METHODS))}")


def read_table(path: Path) -> CalibrationTable:
    """A table from its file."""
    remedy = "make one with trtopt quantize --data DATA"
    try:
        table = from_json(read_bounded(path), CalibrationTable)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})", remedy) from None
    except ValueError as error:
        raise ArtifactError(f"{path}: not a calibration table: {error}", remedy) from None
    if table.schema != CALIBRATION_SCHEMA:
        raise ArtifactError(f"{path}: schema {table.schema!r}, expected {CALIBRATION_SCHEMA!r}", remedy)
    for name, row in table.tensors.items():
        for value in (row.chosen, *row.amax.values()):
            if not 0 <= value <= _LARGEST:
                raise ArtifactError(
                    f"{path}: tensor {name!r} has amax {value}",
                    f"an amax is a number from 0 to FP32's largest, {_LARGEST:.3g}",
                )
    for name, factors in table.smoothed.items():
        for channel, factor in factors.items():
            if not _SMALLEST <= factor <= _LARGEST:
                raise ArtifactError(
                    f"{path}: channel {channel} of {name!r} is divided by {factor}",
                    f"what divides is a number that FP32 holds: from {_SMALLEST:.3g} to {_LARGEST:.3g}",
                )
    return table


def with_method(table: CalibrationTable, method: str | None) -> CalibrationTable:
    """The table with another method chosen; as it stands for None and for `auto`, whose choice is in it."""
    if method in (None, AUTO):
        return table
    lacking = [name for name, row in table.tensors.items() if method not in row.amax]
    if lacking:
        raise UsageError(
            f"the table has no {method} for tensor {lacking[0]!r}", "calibrate again with --data DATA"
        )
    rows = chosen({name: row.amax for name, row in table.tensors.items()}, str(method))
    return msgspec.structs.replace(table, method=str(method), tensors=rows)


def check_complete(table: CalibrationTable, tensors: Iterable[str], name: str) -> None:
    """Every tensor that is to be quantised must be in the table."""
    lacking = [tensor for tensor in tensors if tensor not in table.tensors]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise ArtifactError(
            f"{name}: tensor {lacking[0]!r}{more} is to be quantised and not in the table",
            "the table was made for another model, placement or target: calibrate again with --data DATA",
        )
