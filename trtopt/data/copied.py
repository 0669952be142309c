"""Samples of a user's function, read once in a process of its own and kept as files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.data.npz import write_npz
from trtopt.data.source import open_data
from trtopt.errors import DataError
from trtopt.records import Record, TensorSpec

_BATCH = 32
_KEPT_FREE = 1 << 30
"""Bytes that stay free on the disk: a function may yield without end."""


class SamplesJob(Record, frozen=True, kw_only=True, tag="samples"):
    """A worker's job: write all samples of `data` for `inputs` into `folder`, for `open_data`."""

    data: str
    inputs: tuple[TensorSpec, ...]
    folder: str


def write_samples(job: SamplesJob, progress: Callable[[str, float | None], None]) -> int:
    """Write a file per batch; returns how many there were."""
    folder = Path(job.folder)
    progress("importing", None)
    written = 0
    source = open_data(job.data)
    progress(_waiting(0), None)
    for batch in source.batches(job.inputs, _BATCH):
        size = sum(array.nbytes for array in batch.values())
        if shutil.disk_usage(folder).free < size + _KEPT_FREE:
            raise DataError(
                f"{job.data}: the disk of {folder} is full after {written * _BATCH} samples",
                "yield fewer samples, or free some space",
            )
        stored = {name: _storable(array) for name, array in batch.items()}
        write_npz(folder / f"{written:06}.npz", stored)
        written += 1
        progress(_waiting(written), None)
    return written


def _waiting(written: int) -> str:
    return f"waiting for samples {written * _BATCH + 1} to {(written + 1) * _BATCH}"


def _storable(array: NDArray[Any]) -> NDArray[Any]:
    """The array; float32 for types that NumPy itself does not have, such as bfloat16."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array
