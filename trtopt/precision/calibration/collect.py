"""What one pass over the data fills: a histogram for every tensor that is to be quantised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.errors import DataError
from trtopt.precision.calibration.histogram import Histogram, NotFinite


class Ranges:
    """Histograms by tensor. Memory: 16 KiB a tensor, whatever the number of samples."""

    def __init__(self, tensors: Sequence[str]) -> None:
        self.seen = {name: Histogram() for name in tensors}

    def visit(self, name: str, values: NDArray[Any], first: int) -> None:
        """Take in one batch of a tensor; its first sample is number `first`.

        Raises:
            DataError: a value is NaN or infinite; names the tensor and the sample.
        """
        try:
            self.seen[name].add(values)
        except NotFinite as error:
            raise _not_finite(name, first + error.index) from None


class ChannelPeaks:
    """The largest |x| of each channel along the last axis, by tensor."""

    def __init__(self) -> None:
        self.peaks: dict[str, NDArray[np.float32]] = {}

    def visit(self, name: str, values: NDArray[Any], first: int) -> None:
        """Take in one batch of a tensor; its first sample is number `first`.

        Raises:
            DataError: a value is NaN or infinite; names the tensor and the sample.
        """
        rows = np.abs(values.reshape(-1, values.shape[-1])).max(axis=0).astype(np.float32)
        if not np.isfinite(rows).all():
            bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
            raise _not_finite(name, first + int(np.argmax(bad)))
        self.peaks[name] = np.maximum(self.peaks[name], rows) if name in self.peaks else rows


def _not_finite(name: str, sample: int) -> DataError:
    return DataError(
        f"tensor {name!r} is not finite (NaN or infinity) with sample {sample}",
        "take that sample out of the data, or find out why the model overflows on it",
    )
