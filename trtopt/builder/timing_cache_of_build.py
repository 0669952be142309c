"""Which timings one build starts from, and where those that it adds go."""

from __future__ import annotations

from pathlib import Path

from trtopt.builder.timing_cache import (
    StoredCache,
    TimingStore,
    identity_of,
    load_cache,
    save_cache,
    terms_of,
)
from trtopt.device.building import EngineBuilder
from trtopt.errors import BuildError, OutputError, TimingCacheError
from trtopt.records import BuildClocks, BuildPlan


class BuildCaches:
    """The cache file of a build and, behind it, the store; `notes` is what the user should hear.

    The file is the user's own or the build folder's, which its engines share: what is wrong with it is an
    error. What is wrong with the store never fails a build.
    """

    def __init__(self, builder: EngineBuilder, plan: BuildPlan, file: str | None, store: str | None) -> None:
        self._builder = builder
        self._plan = plan
        self._file = Path(file) if file and builder.uses_timing_cache else None
        self._store = TimingStore(Path(store)) if store and builder.uses_timing_cache else None
        self._here = identity_of(builder.backend, builder.device)
        self._terms = terms_of(plan.settings)
        self._began_with: StoredCache | None = None
        self._is_stores = False
        self.notes: list[str] = []

    def start(self) -> StoredCache | None:
        """What to start from: the file's, else the store's."""
        from_file = load_cache(self._file, self._here) if self._file is not None else None
        from_store = self._load_stored()
        self._began_with = from_file or from_store
        self._is_stores = from_file is None
        return self._began_with

    @property
    def begun_with(self) -> Path | None:
        """The file that `start` has read."""
        if self._began_with is None or not self._is_stores:
            return self._file if self._began_with is not None else None
        assert self._store is not None
        return self._store.path(self._here, self._terms)

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

    def save(self, blob: bytes | None, clocks: BuildClocks) -> StoredCache | None:
        """Save what the build has timed, unless on a slowed GPU; returns what the file now holds."""
        if blob is None:
            return None
        if clocks.slowed:
            self.notes.append(
                f"{self._plan.label}: the GPU was slowed while tactics were timed "
                f"({', '.join(clocks.slowed)}): its timings are not saved"
            )
            return None
        saved = None
        grown_from = self._began_with  # `blob` has it, wherever it came from: neither place needs it merged
        if self._file is not None:
            saved = save_cache(self._file, blob, self._here, grown_from=grown_from, merge=self._union)
        if self._store is not None:
            try:
                stored = self._store.save(
                    blob, self._here, self._terms, grown_from=grown_from, merge=self._union
                )
                saved = saved or stored
            except TimingCacheError as error:
                self._set_aside(error)
            except OutputError as error:
                self.notes.append(f"the timing-cache store was not written: {error.problem}")
        return saved

    def _load_stored(self) -> StoredCache | None:
        """The store's; one that is damaged makes way for what this build will save."""
        if self._store is None:
            return None
        try:
            return self._store.load(self._here, self._terms)
        except TimingCacheError as error:
            self._set_aside(error)
            return None

    def _union(self, ours: bytes, theirs: bytes) -> bytes:
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
        assert self._store is not None
        try:
            aside = self._store.set_aside(self._here, self._terms, refused)
        except OutputError as failure:
            self.notes.append(f"a timing cache of the store is not used: {error.problem}; {failure.problem}")
            return
        where = f"set aside as {aside.name}" if aside else "gone or mended by now"
        self.notes.append(f"a timing cache of the store is not used: {error.problem}; it is {where}")
