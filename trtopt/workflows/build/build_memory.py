"""Device memory that was used while engines were built."""

from __future__ import annotations

from pathlib import Path

from trtopt.files.bounded_reading import read_bounded, reading_as
from trtopt.inspect.memory import timeline
from trtopt.records import Manifest, MemoryPass, MemoryTimeline, from_json


def memories_of(folder: Path, manifest: Manifest) -> dict[str, MemoryTimeline]:
    """The timeline of each engine whose builder was traced (`trtopt build --memory`), by its file."""
    found = {}
    for engine in manifest.engines:
        if engine.memory is not None:
            file = folder / engine.memory
            with reading_as("a builder's allocations", file, "build again with --memory"):
                traced = from_json(read_bounded(file), MemoryPass)
            found[engine.path] = timeline(traced)
    return found
