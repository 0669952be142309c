"""Timing-cache files: TensorRT's blob behind a header that says where it was made.

The file is `trtopt timing cache 1`, a line of JSON (`Identity`), then TensorRT's own bytes. It is read,
merged and written under a file lock, so concurrent builds lose nothing. A file without the header is taken
for a cache of another tool's (trtexec writes such): TensorRT itself then judges whether it fits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trtopt.errors import TimingCacheError
from trtopt.records import Backend, DeviceInfo, Record, from_json, to_json
from trtopt.workspace import lock, write_atomically

_MAGIC = b"trtopt timing cache 1\n"


class Identity(Record, frozen=True, kw_only=True):
    """What a timing cache is bound to."""

    backend: Backend
    gpu: str
    compute_capability: str | None
    driver: str | None
    cuda: str | None


@dataclass(frozen=True)
class StoredCache:
    """A cache as read; `identity` is None for one that another tool wrote."""

    identity: Identity | None
    blob: bytes

    @property
    def sha256(self) -> str:
        """Hash of TensorRT's bytes alone."""
        return hashlib.sha256(self.blob).hexdigest()


def identity_of(backend: Backend, device: DeviceInfo) -> Identity:
    """The identity of caches made here."""
    return Identity(
        backend=backend,
        gpu=device.name,
        compute_capability=device.compute_capability,
        driver=device.driver,
        cuda=device.cuda,
    )


def load_cache(path: Path, here: Identity) -> StoredCache | None:
    """The cache in `path`, or None if the file does not exist yet.

    Raises:
        TimingCacheError: it is damaged, or was made elsewhere; says what differs.
    """
    if not path.exists():
        return None
    stored = _read(path)
    if stored.identity is not None and stored.identity != here:
        raise TimingCacheError(
            f"{path}: this timing cache was made elsewhere: {_difference(stored.identity, here)}",
            "give another --timing-cache file for this machine; one that does not exist yet is made",
        )
    return stored


def save_cache(
    path: Path,
    blob: bytes,
    here: Identity,
    *,
    grown_from: StoredCache | None,
    merge: Callable[[bytes, bytes], bytes],
) -> StoredCache:
    """Write `blob`, merged with what another build has saved since `grown_from` was read.

    `merge(ours, theirs)` is TensorRT's.

    Raises:
        TimingCacheError: what is there by now does not belong with it.
        OutputError: the file cannot be written, or its lock is held for too long.
    """
    with lock(path):
        present = load_cache(path, here)
        others_wrote = present is not None and (grown_from is None or present.blob != grown_from.blob)
        if present is not None and others_wrote and present.blob != blob:
            blob = merge(blob, present.blob)
        write_atomically(path, _MAGIC + to_json(here, indent=None) + blob)
    return StoredCache(here, blob)


def _read(path: Path) -> StoredCache:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TimingCacheError(
            f"{path}: cannot be read as a timing cache ({error.strerror})", "give another --timing-cache file"
        ) from None
    if not content.startswith(_MAGIC):
        return StoredCache(None, content)
    header, newline, blob = content[len(_MAGIC) :].partition(b"\n")
    try:
        if not newline:
            raise ValueError("cut short in its header")
        return StoredCache(from_json(header, Identity), blob)
    except ValueError as error:
        raise TimingCacheError(
            f"{path}: a damaged timing cache: {error}", "remove it, or give another --timing-cache file"
        ) from None


def _difference(there: Identity, here: Identity) -> str:
    parts = [
        f"{name.replace('_', ' ')} {getattr(there, name)}, here {getattr(here, name)}"
        for name in Identity.__struct_fields__
        if getattr(there, name) != getattr(here, name)
    ]
    return "; ".join(parts)
