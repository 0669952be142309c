"""Timing-cache files: TensorRT's blob behind a header that says where and by which builds it was made.

The file is `trtopt timing cache 1`, a line of JSON (`Header`), then TensorRT's own bytes. It is read, merged
and written under a file lock, so concurrent builds lose nothing that TensorRT will merge. A file without the
header is taken for a cache of another tool's (trtexec writes such): TensorRT itself judges whether it fits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trtopt.builder_settings import cache_terms
from trtopt.errors import TimingCacheError
from trtopt.files.atomic import write_atomically
from trtopt.files.bounded_reading import read_bounded
from trtopt.files.locks import lock
from trtopt.files.outputs import kind_beginning
from trtopt.files.replace_folder import remove_abandoned
from trtopt.records import (
    Backend,
    BuildSettings,
    CacheTerms,
    DeviceInfo,
    Identity,
    TimedBuild,
    from_json,
    to_json,
)

_MAGIC = b"trtopt timing cache 1\n"
CACHE = kind_beginning("a timing cache", _MAGIC)
_MAX_HEADER_BYTES = 1 << 20
_KEPT_BUILDS = 200


class Header(Identity, frozen=True, kw_only=True):
    """What the file says before TensorRT's bytes; `builds` are the latest of `build_count`."""

    terms: CacheTerms | None = None
    blob_sha256: str | None = None
    builds: tuple[TimedBuild, ...] = ()
    build_count: int = 0

    @property
    def identity(self) -> Identity:
        """Where the cache was made."""
        return Identity(**{name: getattr(self, name) for name in Identity.__struct_fields__})

    def with_builds(self, more: tuple[TimedBuild, ...], count: int) -> Header:
        """The same with more builds; the oldest are only counted."""
        return msgspec.structs.replace(
            self, builds=(*self.builds, *more)[-_KEPT_BUILDS:], build_count=self.build_count + count
        )


@dataclass(frozen=True)
class StoredCache:
    """A cache as read; `header` is None for one that another tool wrote."""

    header: Header | None
    blob: bytes

    @property
    def identity(self) -> Identity | None:
        """Where it was made, if it says so."""
        return self.header.identity if self.header else None

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


def terms_of(settings: BuildSettings) -> CacheTerms:
    """What of a build's settings decides which tactics compete."""
    return cache_terms(settings, CacheTerms)


def load_cache(path: Path, here: Identity, terms: CacheTerms | None = None) -> StoredCache | None:
    """The cache in `path`, or None if the file does not exist yet. With `terms` it must be of those."""
    if not path.exists():
        return None
    stored = read_cache(path)
    if stored.identity is not None and stored.identity != here:
        raise TimingCacheError(
            f"{path}: this timing cache was made elsewhere: {_difference(stored.identity, here)}",
            "give another --timing-cache file for this machine; one that does not exist yet is made",
        )
    if terms is not None and (stored.header is None or stored.header.terms != terms):
        raise TimingCacheError(
            f"{path}: this timing cache was made with other builder settings than its name says", "remove it"
        )
    return stored


def save_cache(
    path: Path,
    blob: bytes,
    here: Identity,
    *,
    grown_from: StoredCache | None,
    merge: Callable[[bytes, bytes], bytes],
    terms: CacheTerms | None = None,
    build: TimedBuild | None = None,
) -> StoredCache:
    """Write `blob`, merged with what another build has saved since `grown_from` was read.

    `merge(ours, theirs)` is TensorRT's; `build` is the one that `blob` comes from.
    """
    with lock(path):
        remove_abandoned(path)
        present = load_cache(path, here, terms)
        others_wrote = present is not None and (grown_from is None or present.blob != grown_from.blob)
        if present is not None and others_wrote and present.blob != blob:
            blob = merge(blob, present.blob)
        known = present.header if present and present.header else header_of(here, terms)
        own = () if build is None else (build,)
        return write_cache(path, known.with_builds(own, len(own)), blob)


def header_of(identity: Identity, terms: CacheTerms | None) -> Header:
    """The header of a cache that no build has written to."""
    return Header(**msgspec.structs.asdict(identity), terms=terms)


def write_cache(path: Path, header: Header, blob: bytes) -> StoredCache:
    """Write a cache whole, with the hash of `blob`."""
    header = msgspec.structs.replace(header, blob_sha256=hashlib.sha256(blob).hexdigest())
    write_atomically(path, _MAGIC + to_json(header, indent=None) + blob)
    return StoredCache(header, blob)


def read_cache(path: Path) -> StoredCache:
    """The cache in `path`, wherever it was made."""
    try:
        content = read_bounded(path)
    except ValueError as error:
        raise TimingCacheError(
            f"{path}: not a timing cache: {error}", "give another --timing-cache file"
        ) from None
    except OSError as error:
        raise TimingCacheError(
            f"{path}: cannot be read as a timing cache ({error.strerror})", "give another --timing-cache file"
        ) from None
    if not content.startswith(_MAGIC):
        return StoredCache(None, content)
    text, newline, blob = content[len(_MAGIC) :].partition(b"\n")
    try:
        if not newline or len(text) > _MAX_HEADER_BYTES:
            raise ValueError("cut short in its header")
        header = from_json(text, Header)
        if header.blob_sha256 not in (None, hashlib.sha256(blob).hexdigest()):
            raise ValueError("its bytes are not those that were written")
        return StoredCache(header, blob)
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
