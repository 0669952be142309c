"""Reading trtexec's exports: `--exportTimes` (one sample per query), `--exportProfile` (one mean per layer).

Layouts as in samples/common/sampleReporting.cpp of TensorRT 8.6 to 10: JSON lists of objects, times in
milliseconds. `latencyMs` is H2D + compute + D2H by device events, without any wait of the host. It compares
only with the sum of the same three of trtopt's own samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from trtopt.records import BenchPoint

T = TypeVar("T")


@dataclass(frozen=True)
class Times:
    """Device latencies in milliseconds, in order; `batch` is None if unknown.

    `untrustworthy` are a result file's reasons against them; trtexec's files have none.
    """

    name: str
    latencies: tuple[float, ...]
    batch: int | None = None
    untrustworthy: tuple[str, ...] = ()


@dataclass(frozen=True)
class Profile:
    """Each layer's mean in milliseconds, by name; a name that comes twice is summed."""

    name: str
    layers: Mapping[str, float]


class _Query(msgspec.Struct):
    """One query; other fields (start and end times, `endToEndMs` before 8.5) are of no use here."""

    h2dMs: float
    computeMs: float
    d2hMs: float
    latencyMs: float


class _Entry(msgspec.Struct):
    """The first of a profile holds only `count`, the others one layer each."""

    count: int | None = None
    name: str | None = None
    averageMs: float | None = None


def read_trtexec(text: bytes, name: str) -> Times | Profile:
    """A file of either kind, validated; `name` is what to call it."""
    entries = _decode(text, list[_Entry])
    if entries and entries[0].count is not None:
        return Profile(name, _layers(entries))
    return Times(name, tuple(_latencies(_decode(text, list[_Query]))))


def _decode(text: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"not as trtexec exports times or profiles: {error}") from None


def _latencies(queries: list[_Query]) -> list[float]:
    if not queries:
        raise ValueError("it holds no queries")
    for index, query in enumerate(queries):
        parts = (query.h2dMs, query.computeMs, query.d2hMs)
        total = math.fsum(parts)
        if min(parts) < 0 or not math.isclose(total, query.latencyMs, rel_tol=1e-3, abs_tol=2e-3):
            raise ValueError(
                f"query {index}: latencyMs {query.latencyMs:g} is not the sum {total:g} of its parts"
            )
    return [query.latencyMs for query in queries]


def _layers(entries: list[_Entry]) -> dict[str, float]:
    means: dict[str, float] = {}
    for index, entry in enumerate(entries[1:], start=1):
        if entry.name is None or entry.averageMs is None or not entry.averageMs >= 0:
            raise ValueError(f"entry {index}: no layer with a name and a time")
        means[entry.name] = means.get(entry.name, 0.0) + entry.averageMs
    if not means:
        raise ValueError("it holds no layers")
    return means


def device_latency(point: BenchPoint) -> list[float]:
    """The same figure of trtopt's own samples: of the throughput pass, for trtexec queues ahead too.

    Copies count where they are part of a query.
    """
    stages = (point.throughput or point.latency).staged
    none = [0.0] * len(stages.gpu_compute_ms)
    parts = zip(stages.h2d_ms or none, stages.gpu_compute_ms, stages.d2h_ms or none, strict=True)
    return [math.fsum(part) for part in parts]
