"""Rows of many arrays put together in host memory; large batches by several threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from trtopt.device.affinity import present_cores
from trtopt.serving.vectored_copy import Placed, copy_in, copy_out

SHARE_BYTES = 2 << 20
"""What a thread of several copies at least, in 150 to 300 µs: waking one takes 10 to 100."""

SHARED_BYTES = 1 << 20
"""What an answer may keep in memory of others that are gone: 128 rows of 4 KB take 30 µs so, else 420."""

_MOST_THREADS = 8
_LOCKED_ELEMENTS = 500
"""Up to so many NumPy copies without letting go of the interpreter's lock (NPY_BEGIN_THREADS_THRESHOLDED)."""


class Copier:
    """Copies rows into batches, for any thread.

    By default by half of the cores that this process may use, at most 8: a core moves 5 to 10 GB/s, and each
    thread more must wait for the interpreter twice. Batches that are put together at a time share them.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = max(1, threads or min(_MOST_THREADS, len(present_cores()) // 2))
        # A batch keeps the threads that it began with: a second one may want half as many more.
        self._helpers = ThreadPoolExecutor(2 * self._threads, "trtopt-copier")
        self._guard = threading.Lock()
        self._filling = 0

    def fill(self, batch: NDArray[np.generic], rows: Sequence[Placed]) -> None:
        """Put rows where they belong; no two of them overlap there."""
        most = min(self._threads, batch.nbytes // SHARE_BYTES)
        if most < 2:
            _copy(batch, rows)
            return
        with self._guard:
            self._filling += 1
            threads = max(1, min(most, self._threads // self._filling))
        try:
            self._fill(batch, rows, threads)
        finally:
            with self._guard:
                self._filling -= 1

    def _fill(self, batch: NDArray[np.generic], rows: Sequence[Placed], threads: int) -> None:
        first, *others = _shares(rows, threads) or [[]]  # all rows of a batch may lie on the device
        helped = [self._helpers.submit(_copy, batch, share) for share in others]
        try:
            _copy(batch, first)
        finally:  # no thread may write to the batch once this has returned
            failures = [helper.exception() for helper in helped]
        for failure in filter(None, failures):
            raise failure

    def close(self) -> None:
        """Let the threads end; nothing may be copied any more."""
        self._helpers.shutdown()


def own_rows(batch: NDArray[np.generic], spans: Sequence[tuple[int, int]]) -> list[NDArray[np.generic]]:
    """Rows from the first to the last, exclusively, of each span, in memory of their own.

    Those of a small batch share a copy of it, which lives as long as one of them does.
    """
    if len(spans) > 1 and batch.nbytes <= SHARED_BYTES:
        copied = batch.copy()
        return [copied[start:stop] for start, stop in spans]
    if _is_one_call_worth(batch, len(spans)):
        owned = [np.empty((stop - start, *batch.shape[1:]), batch.dtype) for start, stop in spans]
        if copy_out(batch, [(start, rows) for (start, _), rows in zip(spans, owned, strict=True)]):
            return owned
    return [batch[start:stop].copy() for start, stop in spans]


def _copy(batch: NDArray[np.generic], rows: Sequence[Placed]) -> None:
    if _is_one_call_worth(batch, len(rows)) and copy_in(batch, rows):
        return
    for at, array in rows:
        batch[at : at + len(array)] = array


def _is_one_call_worth(batch: NDArray[np.generic], copies: int) -> bool:
    return copies > 1 and batch.size > _LOCKED_ELEMENTS * len(batch)


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
