"""Many rows copied by one system call, for which the interpreter's lock is let go once.

NumPy lets go of it for every array of more than 500 elements. Where other threads compute in Python, each of
these copies then waits up to five milliseconds (`sys.getswitchinterval`) until it continues: in batches of 32
an image took 1,716 µs next to one busy thread, and 336 so (benchmarks/runtime/contended.json).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from trtopt.serving.arrays import address_of

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
