"""Device memory that was used while engines were built."""

from __future__ import annotations

from pathlib import Path

from trtopt.errors import ArtifactError
from trtopt.files.bounded_reading import read_bounded, reason_of
from trtopt.inspect.memory import timeline
from trtopt.records import EngineArtifact, Manifest, MemoryPass, MemoryTimeline, from_json


def memories_of(folder: Path, manifest: Manifest) -> dict[str, MemoryTimeline]:
    """The timeline of each engine whose builder was traced (`trtopt build --memory`), by its file."""
    return {
        engine.path: timeline(_read(folder, engine))
        for engine in manifest.engines
        if engine.memory is not None
    }


def _read(folder: Path, engine: EngineArtifact) -> MemoryPass:
    """What the builder allocated.

    Raises:
        ArtifactError: the file is gone or damaged.
    """
    file = folder / str(engine.memory)
    try:
        return from_json(read_bounded(file), MemoryPass)
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{file}: cannot be read as a builder's allocations: {reason_of(error)}",
            "build again with --memory",
        ) from None
