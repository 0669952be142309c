"""Records of timing caches: where one was made, for which settings, and by which builds."""

from __future__ import annotations

from trtopt.records.base import Record
from trtopt.records.building import Backend, BuildClocks


class Identity(Record, frozen=True, kw_only=True):
    """The machine and versions that a timing cache is valid for."""

    backend: Backend
    gpu: str
    compute_capability: str | None
    driver: str | None
    cuda: str | None


class CacheTerms(Record, frozen=True, kw_only=True):
    """The settings that decide which tactics compete.

    The winner among few tactics may not win among many, so the store has a separate cache for each setting.
    `plugins` are libraries' hashes.
    """

    opt_level: int | None = None
    workspace_bytes: int | None = None
    tactic_sources: tuple[str, ...] | None = None
    plugins: tuple[str, ...] = ()
    tiling: str | None = None
    l2_limit_bytes: int | None = None
    build_route: str | None = None


class TimedBuild(Record, frozen=True, kw_only=True):
    """One build that added timings to a cache: time, host, model, and the GPU's state."""

    at: str
    host: str
    trtopt: str
    onnx_sha256: str
    engine: str
    seconds: float
    clocks: BuildClocks | None


class CacheEntry(Record, frozen=True, kw_only=True):
    """One file of the store; `problem` says why it cannot be used, and then the rest is unknown.

    `used` is when a build last read or wrote it (ISO 8601, UTC); `builds` are the latest of `build_count`.
    """

    schema: str = "trtopt.cache/1"
    name: str
    path: str
    size_bytes: int
    used: str
    identity: Identity | None = None
    terms: CacheTerms | None = None
    builds: tuple[TimedBuild, ...] = ()
    build_count: int = 0
    problem: str | None = None


class Tactic(Record, frozen=True, kw_only=True):
    """An entry of an editable cache: the key of a layer's problem, and which tactic won with what time."""

    key: str
    tactic: str
    ms: float


class CacheDifference(Record, frozen=True, kw_only=True):
    """Entries that only one of two editable caches has, and entries with different winners."""

    only_first: tuple[Tactic, ...]
    only_second: tuple[Tactic, ...]
    changed: tuple[tuple[Tactic, Tactic], ...]
    same: int
