"""How far a tensor lies from its reference: cosine, SQNR, largest error, top-1 agreement; pure arithmetic.

SQNR = 10·log10(Σ r² / Σ (r - x)²) in dB, r the reference; cosine = Σ r·x / √(Σ r² · Σ x²). Both are taken
over all elements of all samples, so that batches can be added up as they come.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.records.checking import OutputDifference

_FEWEST_CLASSES = 2


class Deviation:
    """Adds up the difference of one tensor over batches."""

    def __init__(self, name: str, *, classifies: bool = False) -> None:
        self.name = name
        self._classifies = classifies
        self._values = self._mismatched = self._nonfinite = self._agree = self._rows = 0
        self._resized = 0
        self._integer = False
        self._reference = self._other = self._dot = self._error = self._largest = 0.0

    def add(self, reference: NDArray[Any], other: NDArray[Any]) -> None:
        """Take a batch of both, of one shape and any numeric type.

        Raises:
            ValueError: the shapes differ.
        """
        if reference.shape != other.shape:
            raise ValueError(f"shapes {reference.shape} and {other.shape}")
        if self._classifies and reference.size:
            same = reference.argmax(-1) == other.argmax(-1)
            self._agree += int(same.sum())
            self._rows += same.size
        first, second = (np.asarray(array, np.float64).reshape(-1) for array in (reference, other))
        finite = np.isfinite(first) & np.isfinite(second)
        if not finite.all():
            same = (first == second) | (np.isnan(first) & np.isnan(second))
            self._mismatched += int((~finite & ~same).sum())
            self._nonfinite += int((~np.isfinite(second)).sum())
            first, second = first[finite], second[finite]
        self._values += reference.size
        self._integer = reference.dtype.kind in "iub"
        gap = first - second
        self._reference += float(first @ first)
        self._other += float(second @ second)
        self._dot += float(first @ second)
        self._error += float(gap @ gap)
        self._largest = max(self._largest, float(np.abs(gap).max(initial=0.0)))

    def add_resized(self) -> None:
        """Take a batch of another size, which cannot be compared."""
        self._resized += 1

    @property
    def sqnr_db(self) -> float | None:
        """In dB; None without any error, minus infinity for an error on a reference that is all zero."""
        if not self._error:
            return None
        return 10 * math.log10(self._reference / self._error) if self._reference else -math.inf

    def result(self) -> OutputDifference:
        """The figures over all batches so far."""
        norm = math.sqrt(self._reference) * math.sqrt(self._other)
        is_unknown = self._resized > 0 and not self._values
        exact = float(self._reference == self._other and not is_unknown)
        sqnr = self.sqnr_db
        return OutputDifference(
            output=self.name,
            values=self._values,
            cosine=min(1.0, self._dot / norm) if norm else exact,
            sqnr_db=max(sqnr, -999.0) if sqnr is not None else None,
            max_abs=self._largest,
            top1=self._agree / self._rows if self._rows else None,
            mismatched=self._mismatched,
            nonfinite=self._nonfinite,
            integer=self._integer,
            resized=self._resized,
        )


def is_classifier(reference: NDArray[Any]) -> bool:
    """Whether an output's values look like scores [samples, classes]: not like embeddings of length 1."""
    if reference.ndim != 2 or reference.shape[1] < _FEWEST_CLASSES or reference.dtype.kind in "iub":
        return False
    wide = np.asarray(reference, np.float64)
    is_unit = bool(np.allclose(np.linalg.norm(wide, axis=1), 1, atol=1e-2))
    is_share = bool((wide >= 0).all()) and bool(np.allclose(wide.sum(1), 1, atol=1e-2))
    return is_share or not is_unit
