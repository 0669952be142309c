"""The system's cache of files: what of a file is in memory, and how to have it read from the disk."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np


def cached_share(path: Path) -> float:
    """How much of a file is in the page cache, from 0 to 1."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return 1.0
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
            content = np.frombuffer(mapped, np.uint8)
            try:
                pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.mincore(ctypes.c_void_p(content.ctypes.data), ctypes.c_size_t(size), pages):
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number), str(path))
            finally:
                del content  # the map cannot be closed while an array looks into it
        return sum(page & 1 for page in pages) / len(pages)


def drop_from_cache(path: Path) -> bool:
    """Have a file's next reader read the disk; takes no privileges. False where the system kept it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # pages that are not yet on the disk stay
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return cached_share(path) == 0.0
