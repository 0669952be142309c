"""Device memory that was used while engines were built."""

from __future__ import annotations

from pathlib import Path

from trtopt.files.bounded_reading import reading_as
from trtopt.files.manifests import read_listed
from trtopt.inspect.memory import timeline
from trtopt.records import Manifest, MemoryPass, MemoryTimeline, from_json


def memories_of(folder: Path, manifest: Manifest) -> dict[str, MemoryTimeline]:
    """The timeline of each engine whose builder was traced (`trtopt build --memory`), by its file."""
    found = {}
    for engine in manifest.engines:
        if engine.memory is not None:
            with reading_as("a builder's allocations", folder / engine.memory, "build again with --memory"):
                traced = from_json(read_listed(folder, manifest, engine.memory), MemoryPass)
            found[engine.path] = timeline(traced)
    return found
