"""The driver's timing caches: each build begins with them and adds to them, wherever it runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trtopt.builder.engine import BuildJob
from trtopt.builder.timing_cache import read_cache
from trtopt.builder.timing_cache_of_build import BuildCaches
from trtopt.device.building import EngineBuilder
from trtopt.files.atomic import scratch_folder
from trtopt.records import EngineArtifact


class Timings:
    """The caches of one build that runs elsewhere; only this process writes to them."""

    def __init__(self, builder: EngineBuilder, job: BuildJob) -> None:
        """Read what the build begins with."""
        self._caches = BuildCaches(builder, job.plan, job.timing_cache, job.store)
        self._caches.start()

    @property
    def file(self) -> Path | None:
        """The file that the build begins with, if there is one yet."""
        return self._caches.begun_with

    def add(self, engine: EngineArtifact, content: bytes | None) -> EngineArtifact:
        """Merge what the build has timed, the `content` of its cache file; returns its record after that."""
        if content is None or engine.clocks is None:
            return engine
        with scratch_folder() as folder:
            file = folder / "timing.cache"
            file.write_bytes(content)
            blob = read_cache(file).blob
        saved = self._caches.save(blob, engine.build_seconds, engine.clocks)
        return msgspec.structs.replace(
            engine,
            timing_cache_out=saved.sha256 if saved else None,
            notes=tuple(dict.fromkeys((*engine.notes, *self._caches.notes))),
        )
