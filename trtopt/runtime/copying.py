"""Rows of many arrays put together in host memory; large batches by several threads."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from trtopt.device.affinity import present_cores

LARGE_BYTES = 4 << 20
"""What one thread copies in about half a millisecond: less is not worth another's waking up."""

_MOST_THREADS = 8

Placed = tuple[int, NDArray[np.generic]]
"""Rows, and where in the batch the first of them goes."""


class Copier:
    """Copies rows into batches, for any thread.

    By default as many threads share a large batch as half of the cores that this process may use, at most 8:
    a core moves 5 to 10 GB/s, and NumPy lets go of the interpreter while it copies.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or max(1, min(_MOST_THREADS, len(present_cores()) // 2))
        self._helpers = ThreadPoolExecutor(max(1, self._threads - 1), "trtopt-copier")

    def fill(self, batch: NDArray[np.generic], rows: Sequence[Placed]) -> None:
        """Put rows where they belong; no two of them overlap there."""
        if self._threads == 1 or batch.nbytes < LARGE_BYTES:
            _copy(batch, rows)
            return
        first, *others = _shares(rows, self._threads) or [[]]  # all rows of a batch may lie on the device
        helped = [self._helpers.submit(_copy, batch, share) for share in others]
        try:
            _copy(batch, first)
        finally:  # nobody may write to the batch any more once this has returned
            failures = [helper.exception() for helper in helped]
        for failure in filter(None, failures):
            raise failure

    def close(self) -> None:
        """Let the threads end; nothing may be copied any more."""
        self._helpers.shutdown()


def _copy(batch: NDArray[np.generic], rows: Sequence[Placed]) -> None:
    for at, array in rows:
        batch[at : at + len(array)] = array


def _shares(rows: Sequence[Placed], count: int) -> list[list[Placed]]:
    """The rows in as many shares of nearly equal length, in order; arrays are cut where a share ends."""
    total = sum(len(array) for _, array in rows)
    shares: list[list[Placed]] = []
    left = 0
    for at, array in rows:
        start = 0
        while start < len(array):
            if left == 0:
                shares.append([])
                left = -(-total // (count - len(shares) + 1))
            taken = min(left, len(array) - start)
            shares[-1].append((at + start, array[start : start + taken]))
            start, left, total = start + taken, left - taken, total - taken
    return shares
