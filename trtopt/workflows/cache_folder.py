"""trtopt's cache folder: where it is, and what is in and may be done with its store of timing caches."""

from __future__ import annotations

import os
from pathlib import Path

from trtopt.builder.timing_cache import LIMIT_BYTES, TimingStore
from trtopt.errors import UsageError
from trtopt.records import CacheEntry

NO_CACHE = "none"
"""Value of `--timing-cache`: start empty, and do not use the store."""
STORE_VARIABLE = "TRTOPT_CACHE_DIR"


def store_folder(cache_dir: str | Path | None = None) -> Path:
    """`cache_dir`, else $TRTOPT_CACHE_DIR, else `trtopt` in the user's folder for caches."""
    folder = cache_dir or os.environ.get(STORE_VARIABLE)
    return Path(folder) if folder else user_folder()


def user_folder() -> Path:
    """The user's cache folder for files that can be recreated: `trtopt` in the user's folder for caches."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtopt"
    except RuntimeError:  # a container's user without a name
        raise UsageError(
            "this user has no home folder for caches", "set XDG_CACHE_HOME to a folder"
        ) from None


def entries(cache_dir: str | Path | None = None) -> tuple[CacheEntry, ...]:
    """Every cache of the store, the latest used first."""
    return TimingStore(store_folder(cache_dir)).entries()


def prune(limit_bytes: int = LIMIT_BYTES, cache_dir: str | Path | None = None) -> tuple[Path, ...]:
    """Remove what cannot be used, then what has not been used for longest, down to a size."""
    store = TimingStore(store_folder(cache_dir))
    damaged = store.remove([Path(one.path) for one in store.entries() if one.problem])
    return (*damaged, *store.prune(limit_bytes))
