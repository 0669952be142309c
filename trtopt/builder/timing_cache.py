"""Timing caches: TensorRT's blob behind a header that says where it was made, and the store of such files.

A file is `trtopt timing cache 1`, a line of JSON (`Header`), then TensorRT's own bytes. It is read, merged
and written under a file lock, so concurrent builds lose nothing that TensorRT will merge. A file without the
header is taken for a cache of another tool's (trtexec writes such): TensorRT itself judges whether it fits.

All builds of a user, of all hosts on one file system, draw from the store: a folder with a file for each
identity and terms, named by both. Files are replaced atomically under their lock. A damaged one is set aside
under another suffix, and the least recently used are removed when the store outgrows its bound.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from trtopt.builder_settings import cache_terms
from trtopt.errors import TimingCacheError
from trtopt.files.atomic import cannot_write, lock, write_atomically
from trtopt.files.bounded_reading import read_bounded
from trtopt.files.outputs import remove_abandoned
from trtopt.records import (
    Backend,
    BuildSettings,
    CacheEntry,
    CacheTerms,
    DeviceInfo,
    Identity,
    from_json,
    to_json,
)

_MAGIC = b"trtopt timing cache 1\n"
_MAX_HEADER_BYTES = 1 << 20


class Header(Identity, frozen=True, kw_only=True):
    """What the file says before TensorRT's bytes."""

    terms: CacheTerms | None = None
    blob_sha256: str | None = None

    @property
    def identity(self) -> Identity:
        """Where the cache was made."""
        return Identity(**{name: getattr(self, name) for name in Identity.__struct_fields__})


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
) -> StoredCache:
    """Write `blob`, merged with what another build has saved since `grown_from` was read.

    `merge(ours, theirs)` is TensorRT's.
    """
    with lock(path):
        remove_abandoned(path)
        present = load_cache(path, here, terms)
        others_wrote = present is not None and (grown_from is None or present.blob != grown_from.blob)
        if present is not None and others_wrote and present.blob != blob:
            blob = merge(blob, present.blob)
        known = present.header if present and present.header else header_of(here, terms)
        return write_cache(path, known, blob)


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


LIMIT_BYTES = 2 << 30
"""What a store may hold in all."""
SUFFIX = ".cache"
ASIDE = ".damaged"
_KEY_DIGITS = 12
_NAME = re.compile(
    rf".+-[0-9a-f]{{{_KEY_DIGITS}}}{re.escape(SUFFIX)}(\.\d{{8}}T\d{{12}}{re.escape(ASIDE)})?", re.DOTALL
)


@dataclass(frozen=True)
class TimingStore:
    """The store in `folder`."""

    folder: Path
    limit_bytes: int = LIMIT_BYTES

    def path(self, identity: Identity, terms: CacheTerms) -> Path:
        """The file for builds of these settings on this machine: readable, and unique by a hash of both."""
        digest = hashlib.sha256(to_json(header_of(identity, terms), indent=None)).hexdigest()
        words = f"{identity.backend.name}-{identity.backend.version}-{identity.gpu}"
        return self.folder / f"{re.sub(r'[^A-Za-z0-9.]+', '-', words)}-{digest[:_KEY_DIGITS]}{SUFFIX}"

    def load(self, identity: Identity, terms: CacheTerms) -> StoredCache | None:
        """What earlier builds have timed; a file that raises is to be set aside."""
        path = self.path(identity, terms)
        found = load_cache(path, identity, terms)
        if found is not None:
            with suppress(OSError):
                os.utime(path)  # eviction goes by it
        return found

    def save(
        self,
        blob: bytes,
        identity: Identity,
        terms: CacheTerms,
        *,
        grown_from: StoredCache | None,
        merge: Callable[[bytes, bytes], bytes],
    ) -> StoredCache:
        """Add what a build has timed to what is there, and make room if the store has outgrown its bound."""
        path = self.path(identity, terms)
        saved = save_cache(path, blob, identity, terms=terms, grown_from=grown_from, merge=merge)
        self.prune(self.limit_bytes, keep=path)
        return saved

    def set_aside(
        self, identity: Identity, terms: CacheTerms, refused: StoredCache | None = None
    ) -> Path | None:
        """Give a file that raises, or that TensorRT has refused, a name under which nothing reads it.

        None if it is gone by now, or another process has written a good one since.
        """
        path = self.path(identity, terms)
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%f")
        aside = path.with_name(f"{path.name}.{stamp}{ASIDE}")
        with lock(path):
            try:
                found = load_cache(path, identity, terms)
            except TimingCacheError:
                pass
            else:
                if found is None or refused is None or found.blob != refused.blob:
                    return None
            os.replace(path, aside)
        return aside

    def entries(self) -> tuple[CacheEntry, ...]:
        """Every file, the latest used first; damaged ones and those that were set aside with the reason."""
        found = [entry for path in self._files() if (entry := _entry(path)) is not None]
        return tuple(sorted(found, key=lambda entry: entry.used, reverse=True))

    def prune(self, limit_bytes: int, *, keep: Path | None = None) -> tuple[Path, ...]:
        """Remove what was set aside, then the longest unused, until the rest fits; returns what went."""
        sized = []
        for path in self._files():
            with suppress(OSError):
                found = path.stat()
                sized.append((path.suffix == SUFFIX, found.st_mtime, found.st_size, path))
        total = sum(size for _, _, size, _ in sized)
        gone: list[Path] = []
        for _, _, size, path in sorted(sized):
            if total <= limit_bytes:
                break
            if path != keep:
                gone += self.remove([path])
                total -= size
        return tuple(gone)

    def remove(self, paths: Sequence[Path]) -> tuple[Path, ...]:
        """Remove files of the store, each under its lock."""
        for path in paths:
            with lock(path):
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    raise cannot_write(path, error) from None
        return tuple(paths)

    def _files(self) -> list[Path]:
        """The store's own: the folder may be one that holds files of others too."""
        return [path for path in self.folder.glob("*") if _NAME.fullmatch(path.name) and path.is_file()]


def _entry(path: Path) -> CacheEntry | None:
    """None: another process has removed it meanwhile."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    header, problem = _header_in(path)
    return CacheEntry(
        name=path.name.removesuffix(SUFFIX),
        path=str(path),
        size_bytes=found.st_size,
        used=datetime.fromtimestamp(found.st_mtime, timezone.utc).isoformat(timespec="seconds"),
        identity=header.identity if header else None,
        terms=header.terms if header else None,
        problem=problem,
    )


def _header_in(path: Path) -> tuple[Header | None, str | None]:
    """What a file of the store says, or why it cannot be used."""
    if path.suffix == ASIDE:
        return None, "damaged; set aside by a build"
    try:
        header = read_cache(path).header
    except TimingCacheError as error:
        return None, error.problem
    if header is None or header.terms is None:
        return None, "does not say where and for what it was made"
    if TimingStore(path.parent).path(header.identity, header.terms) != path:
        return None, "is not the cache that its name stands for"
    return header, None
