"""Rows of many arrays put together in host memory: many by one system call, large batches by several threads.

NumPy lets go of the interpreter's lock for every array of more than 500 elements, the system call once. Where
other threads compute in Python, each of NumPy's copies then waits up to five milliseconds
(`sys.getswitchinterval`) until it continues: in batches of 32 an image took 1,716 µs next to one busy thread,
and 336 by system calls (benchmarks/runtime/contended.json).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtopt.serving.arrays import address_of

_KNOWN = 256
"""Most batches are of single rows, and of few sizes."""


class Cut(NamedTuple):
    """Rows `start` to `stop` of a part are rows `at` and on of a batch."""

    part: int
    start: int
    stop: int
    at: int


@lru_cache(_KNOWN)
def assign_rows(
    rows_of_parts: tuple[int, ...], rows_of_batches: tuple[int, ...]
) -> tuple[tuple[Cut, ...], ...]:
    """Deal the parts' rows out to the batches, in order; there are as many rows in all of either."""
    dealt: list[tuple[Cut, ...]] = []
    part = start = 0
    for rows in rows_of_batches:
        cuts: list[Cut] = []
        at = 0
        while at < rows:
            taken = min(rows - at, rows_of_parts[part] - start)
            cuts.append(Cut(part, start, start + taken, at))
            at += taken
            start += taken
            if start == rows_of_parts[part]:
                part, start = part + 1, 0
        dealt.append(tuple(cuts))
    return tuple(dealt)


_MOST_REGIONS = 1024
"""Regions a call takes: Linux's IOV_MAX."""

_MOST_BYTES = 1 << 30
"""Linux copies 2 GiB a call at most, and who has so many waits for NumPy as well."""

Placed = tuple[int, NDArray[np.generic]]
"""Rows, and where in the batch the first of them goes."""


def copy_in(batch: NDArray[np.generic], rows: Sequence[Placed]) -> bool:
    """Put C-contiguous rows of the batch's type where they belong in a C-contiguous batch.

    Returns:
        Whether that was done; if not, the system does not offer it, or rows are of another kind.
    """
    return _transfer("process_vm_readv", batch, rows)


def copy_out(batch: NDArray[np.generic], rows: Sequence[Placed]) -> bool:
    """Fill arrays with the rows of the batch that belong there; otherwise as `copy_in`."""
    return _transfer("process_vm_writev", batch, rows)


def _transfer(name: str, batch: NDArray[np.generic], rows: Sequence[Placed]) -> bool:
    """Both calls take regions of the caller first, which may be page-locked memory, then those of the other
    process, which is the caller again.
    """
    call = _system_call(name)
    if call is None or not batch.flags.c_contiguous or not all(_fits(batch, *placed) for placed in rows):
        return False
    row_bytes, start = batch.nbytes // len(batch), address_of(batch)
    here = np.array([(start + at * row_bytes, array.nbytes) for at, array in rows], np.uint64)
    if here[:, 1].sum() > _MOST_BYTES:
        return False
    there = np.array([(address_of(array), array.nbytes) for _, array in rows], np.uint64)
    for first in range(0, len(rows), _MOST_REGIONS):
        ours, theirs = here[first : first + _MOST_REGIONS], there[first : first + _MOST_REGIONS]
        count = len(ours)
        done = call(os.getpid(), address_of(ours), count, address_of(theirs), count, 0)
        if done != int(ours[:, 1].sum()):
            return False
    return True


def _fits(batch: NDArray[np.generic], at: int, array: NDArray[np.generic]) -> bool:
    return (
        array.dtype == batch.dtype
        and array.flags.c_contiguous
        and array.shape[1:] == batch.shape[1:]
        and 0 <= at <= len(batch) - len(array)
    )


@cache
def _system_call(name: str) -> Callable[..., int] | None:
    """process_vm_readv(2) or process_vm_writev(2), which copy within a process, too.

    Regions are `struct iovec`: an address and a length. None where it is missing, or forbidden.
    """
    try:
        call = ctypes.CDLL(None)[name]
    except (OSError, AttributeError):
        return None
    size, regions = ctypes.c_ulong, ctypes.c_void_p
    call.argtypes = (ctypes.c_int, regions, size, regions, size, size)
    call.restype = ctypes.c_ssize_t
    return call if _is_allowed(call) else None


def _is_allowed(call: Callable[..., int]) -> bool:
    """Sandboxes may refuse it: seen by copying one byte."""
    two = np.zeros(2, np.uint8)
    regions = np.array([(address_of(two), 1), (address_of(two[1:]), 1)], np.uint64)
    return call(os.getpid(), address_of(regions), 1, address_of(regions[1:]), 1, 0) == 1


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
        self._threads = max(1, threads or min(_MOST_THREADS, len(os.sched_getaffinity(0)) // 2))
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
