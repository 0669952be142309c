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
from functools import cache
from pathlib import Path

import msgspec

from trtopt.builder_settings import cache_terms
from trtopt.device.api import EngineBuilder
from trtopt.errors import BuildError, OutputError, TimingCacheError
from trtopt.files.atomic import lock, write_atomically, writing
from trtopt.files.bounded_reading import read_bounded
from trtopt.files.outputs import remove_abandoned
from trtopt.records import (
    Backend,
    BuildPlan,
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


@dataclass(frozen=True)
class CacheFile:
    """A file for what is timed `here`; one of a store's is for builds of certain `terms`."""

    path: Path
    here: Identity
    terms: CacheTerms | None = None
    store: TimingStore | None = None

    def load(self) -> StoredCache | None:
        """What is in it, or None if it does not exist yet."""
        if not self.path.exists():
            return None
        stored = read_cache(self.path)
        header = stored.header
        if header is not None and header.identity != self.here:
            raise TimingCacheError(
                f"{self.path}: this timing cache was made elsewhere: {_difference(header, self.here)}",
                "give another --timing-cache file for this machine; one that does not exist yet is made",
            )
        if self.terms is not None and (header is None or header.terms != self.terms):
            raise TimingCacheError(
                f"{self.path}: this timing cache was made with other builder settings than its name says",
                "remove it",
            )
        if self.store is not None:
            with suppress(OSError):
                os.utime(self.path)  # eviction goes by it
        return stored

    def save(
        self, blob: bytes, *, grown_from: StoredCache | None, merge: Callable[[bytes, bytes], bytes]
    ) -> StoredCache:
        """Write `blob`, merged with what another build has saved since `grown_from` was read.

        `merge(ours, theirs)` is TensorRT's.
        """
        with lock(self.path):
            remove_abandoned(self.path)
            present = self.load()
            others_wrote = present is not None and (grown_from is None or present.blob != grown_from.blob)
            if present is not None and others_wrote and present.blob != blob:
                blob = merge(blob, present.blob)
            known = present.header if present and present.header else header_of(self.here, self.terms)
            saved = write_cache(self.path, known, blob)
        if self.store is not None:
            self.store.prune(self.store.limit_bytes, keep=self.path)
        return saved

    def set_aside(self, refused: StoredCache | None = None) -> Path | None:
        """Give a file that raises, or that TensorRT has refused, a name under which nothing reads it.

        None if it is gone by now, or another process has written a good one since.
        """
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%f")
        aside = self.path.with_name(f"{self.path.name}.{stamp}{ASIDE}")
        with lock(self.path):
            try:
                found = self.load()
            except TimingCacheError:
                pass
            else:
                if found is None or refused is None or found.blob != refused.blob:
                    return None
            os.replace(self.path, aside)
        return aside


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


# ── the store ───────────────────────────────────────────────────────────────────────────────────────────

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

    def file(self, identity: Identity, terms: CacheTerms) -> CacheFile:
        """That for builds of these settings on this machine: readable, and unique by a hash of both."""
        digest = hashlib.sha256(to_json(header_of(identity, terms), indent=None)).hexdigest()
        words = f"{identity.backend.name}-{identity.backend.version}-{identity.gpu}"
        name = f"{re.sub(r'[^A-Za-z0-9.]+', '-', words)}-{digest[:_KEY_DIGITS]}{SUFFIX}"
        return CacheFile(self.folder / name, identity, terms, self)

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
            with lock(path), writing(path):
                path.unlink(missing_ok=True)
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
    if TimingStore(path.parent).file(header.identity, header.terms).path != path:
        return None, "is not the cache that its name stands for"
    return header, None


# ── the caches of one build ─────────────────────────────────────────────────────────────────────────────


class BuildCaches:
    """The cache file of a build and, behind it, the store; `notes` is what the user should hear.

    The file is the user's own or the build folder's, which its engines share: what is wrong with it is an
    error. What is wrong with the store never fails a build.
    """

    def __init__(self, builder: EngineBuilder, plan: BuildPlan, file: str | None, store: str | None) -> None:
        self._builder = builder
        self._plan = plan
        here, terms = identity_of(builder.backend, builder.device), terms_of(plan.settings)
        takes = builder.uses_timing_cache
        self._file = CacheFile(Path(file), here) if file and takes else None
        self._stored = TimingStore(Path(store)).file(here, terms) if store and takes else None
        self._began_with: StoredCache | None = None
        self._is_stores = False
        self._union = cache(self._merged)  # file and store are often alike, and merging takes seconds
        self.notes: list[str] = []

    def start(self) -> StoredCache | None:
        """What to start from: the file's, else the store's."""
        from_file = self._file.load() if self._file is not None else None
        from_store = self._load_stored()
        self._began_with = from_file or from_store
        self._is_stores = from_file is None
        return self._began_with

    @property
    def begun_with(self) -> Path | None:
        """The file that `start` has read."""
        file = self._stored if self._is_stores else self._file
        return file.path if file is not None and self._began_with is not None else None

    def refused(self, error: TimingCacheError) -> None:
        """TensorRT refuses what the build started from: the store's is set aside, so that it can go on."""
        if self._began_with is None or not self._is_stores:
            raise error
        refused, self._began_with = self._began_with, None
        self._set_aside(error, refused)

    def suspected(self, error: BuildError) -> None:
        """A build that began with a cache has failed and may do without: it is no proof against the cache.

        What is saved after this has not grown from what is there, and is merged with it.
        """
        self._began_with = None
        self.notes.append(
            f"{self._plan.label}: built without the timing cache: with it there was {error.problem}"
        )

    def save(self, blob: bytes | None, slowed: Sequence[str]) -> StoredCache | None:
        """Save what the build has timed, unless on a slowed GPU; returns what the file now holds."""
        if blob is None:
            return None
        if slowed:
            self.notes.append(
                f"{self._plan.label}: the GPU was slowed while tactics were timed "
                f"({', '.join(slowed)}): its timings are not saved"
            )
            return None
        saved = None
        grown_from = self._began_with  # `blob` has it, wherever it came from: neither place needs it merged
        if self._file is not None:
            saved = self._file.save(blob, grown_from=grown_from, merge=self._union)
        if self._stored is not None:
            try:
                stored = self._stored.save(blob, grown_from=grown_from, merge=self._union)
                saved = saved or stored
            except TimingCacheError as error:
                self._set_aside(error)
            except OutputError as error:
                self.notes.append(f"the timing-cache store was not written: {error.problem}")
        return saved

    def _load_stored(self) -> StoredCache | None:
        """The store's; one that is damaged makes way for what this build will save."""
        try:
            return self._stored.load() if self._stored is not None else None
        except TimingCacheError as error:
            self._set_aside(error)
            return None

    def _merged(self, ours: bytes, theirs: bytes) -> bytes:
        """Both, or the larger where TensorRT refuses, as 8.6 does over what its graph compiler has left: such
        caches still serve all their tactics.
        """
        try:
            return self._builder.merge_timing_caches(ours, theirs)
        except TimingCacheError as error:
            lost = "of other builds" if len(ours) > len(theirs) else "of this build"
            self.notes.append(f"timings {lost} are not kept: {error.problem}")
            return max(theirs, ours, key=len)

    def _set_aside(self, error: TimingCacheError, refused: StoredCache | None = None) -> None:
        assert self._stored is not None
        try:
            aside = self._stored.set_aside(refused)
        except OutputError as failure:
            self.notes.append(f"a timing cache of the store is not used: {error.problem}; {failure.problem}")
            return
        where = f"set aside as {aside.name}" if aside else "gone or mended by now"
        self.notes.append(f"a timing cache of the store is not used: {error.problem}; it is {where}")
