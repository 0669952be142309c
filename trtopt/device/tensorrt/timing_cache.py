"""TensorRT's timing caches: giving one to a builder, merging two, counting hits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trtopt.errors import BuildError, TimingCacheError

_HITS = re.compile(r"Deleting timing cache: \d+ entries, served (\d+) hits")


def attach(config: Any, blob: bytes | None) -> Any:
    """Give the builder a cache that starts from `blob`; returns the cache.

    One with nothing in it then is refused: 8.6 takes garbage without a word, and starts from an empty cache.
    """
    empty = bytes(config.create_timing_cache(b"").serialize())
    cache = config.create_timing_cache(blob or b"")
    taken = cache is not None and config.set_timing_cache(cache, ignore_mismatch=False)
    if not taken or (blob and len(blob) > len(empty) and len(bytes(cache.serialize())) <= len(empty)):
        raise TimingCacheError(
            "TensorRT refuses the timing cache: of another version or GPU, or damaged",
            "give another --timing-cache file; one that does not exist yet is made",
        )
    return cache


def detach(config: Any, cache: Any) -> bytes | None:
    """The cache as a file holds it; None if TensorRT would find nothing in it again.

    8.6 cannot read back what its graph compiler writes. A model that is compiled as a whole leaves nothing
    else in the cache, and the next build would refuse the file.
    """
    blob = bytes(cache.serialize())
    empty = _loaded(config, b"")
    return blob if len(blob) <= len(empty) or len(_loaded(config, blob)) > len(empty) else None


def merge(config: Any, ours: bytes, theirs: bytes, reasons: list[str]) -> bytes:
    """One cache with the entries of both; `reasons` is where the logger puts TensorRT's complaints.

    `combine` may answer no although it has appended every tactic entry: 8.6.0 does so when only the part that
    belongs to its graph compiler cannot be read (seen on a Hopper GPU). So the caches are combined both
    ways: after a true refusal each is as it was, else both hold the union and are of one size.
    """
    forward, accepted = _combined(config, theirs, ours)
    if accepted:
        return forward
    backward, _ = _combined(config, ours, theirs)
    refused = forward == _loaded(config, theirs) and backward == _loaded(config, ours)
    if len(forward) != len(backward) or (refused and forward != backward):
        raise TimingCacheError(
            f"TensorRT will not merge this timing cache with the saved one: {'; '.join(reasons[-2:])}",
            "use one --timing-cache file for each GPU model and TensorRT version",
        )
    return forward


def _combined(config: Any, base: bytes, added: bytes) -> tuple[bytes, bool]:
    cache = config.create_timing_cache(base)
    accepted = cache.combine(config.create_timing_cache(added), ignore_mismatch=False)
    return bytes(cache.serialize()), bool(accepted)


def _loaded(config: Any, blob: bytes) -> bytes:
    """The blob as TensorRT writes it back."""
    return bytes(config.create_timing_cache(blob).serialize())


def tactics_in(cache: Any) -> dict[str, str]:
    """What an editable cache holds at present: the tactic that won, by the key of the layer's problem."""
    return {str(key): f"{cache.query(key).tacticHash:#018x}" for key in cache.queryKeys()}


def require_unchanged(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Check by a cache's tactics that a build chose only by them.

    TensorRT is configured to fail where one is missing, and 11.0 is reported not to.
    """
    added = sorted(after.keys() - before.keys())
    changed = sorted(key for key in after.keys() & before.keys() if before[key] != after[key])
    if added or changed:
        how = [
            f"{len(keys)} were {fate}"
            for keys, fate in ((added, "missing"), (changed, "chosen again"))
            if keys
        ]
        raise BuildError(
            f"--reproducible: the timing cache did not decide it all: of its timings {' and '.join(how)}, "
            f"such as {(added or changed)[0]}",
            "build once without --reproducible to fill the cache, then again with that --timing-cache",
        )


def hits_in(message: str) -> list[int]:
    """How often a cache was of use, where the log says so: TensorRT logs it when it deletes the cache."""
    return [int(hits) for hits in _HITS.findall(message)]
