"""The store of timing caches: where it is, what is in it, and what may be done with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from trtopt.builder.timing_cache import CACHE, LIMIT_BYTES, StoredCache, TimingStore, read_cache
from trtopt.errors import ArtifactError, TimingCacheError
from trtopt.executors.local import run_job
from trtopt.files.outputs import write_output
from trtopt.records import CacheDifference, CacheEntry, Tactic
from trtopt.workers.protocol import Merged, MergeJob, TacticsJob, TacticsTold

NO_CACHE = "none"
"""Value of `--timing-cache`: start empty, and do not use the store."""
STORE_VARIABLE = "TRTOPT_CACHE_DIR"


def store_folder(cache_dir: str | Path | None = None) -> Path:
    """`cache_dir`, else $TRTOPT_CACHE_DIR, else `trtopt` in the user's folder for caches."""
    folder = cache_dir or os.environ.get(STORE_VARIABLE)
    return Path(folder) if folder else user_folder()


def user_folder() -> Path:
    """The user's cache folder for files that can be recreated: `trtopt` in the user's folder for caches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtopt"


def entries(cache_dir: str | Path | None = None) -> tuple[CacheEntry, ...]:
    """Every cache of the store, the latest used first."""
    return _store(cache_dir).entries()


def entry(name: str, cache_dir: str | Path | None = None) -> CacheEntry:
    """One cache by its name or a part of it."""
    path = _store(cache_dir).find(name)
    read_cache(path)
    return next(one for one in entries(cache_dir) if one.path == str(path))


def verify(cache_dir: str | Path | None = None) -> tuple[CacheEntry, ...]:
    """Read every cache whole, against its hash."""
    found = entries(cache_dir)
    bad = [f"{one.name}: {one.problem}" for one in found if one.problem]
    if bad:
        raise ArtifactError(
            f"{len(bad)} of {len(found)} caches cannot be used:\n  " + "\n  ".join(bad),
            "`trtopt cache prune` removes them; builds continue without",
        )
    return found


def prune(limit_bytes: int = LIMIT_BYTES, cache_dir: str | Path | None = None) -> tuple[Path, ...]:
    """Remove what cannot be used, then what has not been used for longest, down to a size."""
    store = _store(cache_dir)
    damaged = store.remove([Path(one.path) for one in store.entries() if one.problem])
    return (*damaged, *store.prune(limit_bytes))


def take_in(files: Sequence[Path], cache_dir: str | Path | None = None) -> tuple[Path, ...]:
    """Merge exported caches into the store; those of other machines too. Returns the store's files."""
    store, taken = _store(cache_dir), []
    for file in files:
        if not file.exists():
            raise TimingCacheError(f"{file}: no such file", "give what `trtopt cache export` wrote")
        cache = read_cache(file)
        if cache.header is None:
            raise TimingCacheError(
                f"{file}: does not say where it was made: another tool's", "use it with --timing-cache"
            )
        taken.append(store.take_in(cache, partial(_merge, cache.header.backend.name)))
    return tuple(taken)


def export(name: str, out: Path, *, raw: bool = False, cache_dir: str | Path | None = None) -> None:
    """Write one cache to a file: for another store or `--timing-cache`, or `raw`, for other tools."""
    path = _store(cache_dir).find(name)
    blob = read_cache(path).blob
    write_output(out, blob if raw else path.read_bytes(), CACHE)


def tactics(name: str, cache_dir: str | Path | None = None) -> tuple[Tactic, ...]:
    """What an editable cache holds; `name` is one of the store's or a file."""
    return _tactics([_cache(name, cache_dir)])[0]


def difference(first: str, second: str, cache_dir: str | Path | None = None) -> CacheDifference:
    """What two editable caches do not share; see `tactics`."""
    contents = _tactics([_cache(name, cache_dir) for name in (first, second)])
    ours, theirs = ({tactic.key: tactic for tactic in one} for one in contents)
    both = ours.keys() & theirs.keys()
    changed = sorted(key for key in both if ours[key].tactic != theirs[key].tactic)
    return CacheDifference(
        only_first=tuple(ours[key] for key in sorted(ours.keys() - both)),
        only_second=tuple(theirs[key] for key in sorted(theirs.keys() - both)),
        changed=tuple((ours[key], theirs[key]) for key in changed),
        same=len(both) - len(changed),
    )


def _store(cache_dir: str | Path | None) -> TimingStore:
    return TimingStore(store_folder(cache_dir))


def _cache(name: str, cache_dir: str | Path | None) -> StoredCache:
    path = Path(name)
    return read_cache(path if path.is_file() else _store(cache_dir).find(name))


def _merge(backend: str, ours: bytes, theirs: bytes) -> bytes:
    """TensorRT's union of two caches, in a process of its own: a cache from elsewhere may crash it."""
    return run_job(MergeJob(backend=backend, ours=ours, theirs=theirs), Merged).blob


def _tactics(caches: Sequence[StoredCache]) -> tuple[tuple[Tactic, ...], ...]:
    headers = [cache.header for cache in caches]
    backends = {header.backend for header in headers if header}
    if len(backends) != 1 or None in headers:
        raise TimingCacheError(
            f"not caches of one TensorRT: {', '.join(sorted(map(str, backends))) or 'they do not say'}",
            "look into caches that trtopt wrote, with the TensorRT that made them",
        )
    job = TacticsJob(backend=backends.pop().name, caches=tuple(cache.blob for cache in caches))
    return run_job(job, TacticsTold).tactics
