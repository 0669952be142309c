"""Reading what trtexec exports with `--exportTimes`: one sample per query.

The layout is that in samples/common/sampleReporting.cpp of TensorRT 8.6 to 10: a JSON list of objects, times
in milliseconds. `latencyMs` is H2D + compute + D2H by device events, without any wait of the host. It
compares only with the sum of the same three of trtopt's own samples.
"""

from __future__ import annotations

import math
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


class _Query(msgspec.Struct):
    """One query; other fields (start and end times, `endToEndMs` before 8.5) are of no use here."""

    h2dMs: float
    computeMs: float
    d2hMs: float
    latencyMs: float


class _Entry(msgspec.Struct):
    """The first of a profile (`--exportProfile`) holds only `count`."""

    count: int | None = None


def read_trtexec(text: bytes, name: str) -> Times:
    """The file, validated; `name` is what to call it."""
    entries = _decode(text, list[_Entry])
    if entries and entries[0].count is not None:
        raise ValueError(
            "it is a profile: means of layers and no samples, which get no verdict; `trtopt profile` has "
            "--against to compare layers"
        )
    return Times(name, tuple(_latencies(_decode(text, list[_Query]))))


def _decode(text: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"not as trtexec exports times: {error}") from None


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


def device_latency(point: BenchPoint) -> list[float]:
    """The same figure of trtopt's own samples: of the throughput pass, for trtexec queues ahead too.

    Copies count where they are part of a query.
    """
    stages = (point.throughput or point.latency).staged
    none = [0.0] * len(stages.gpu_compute_ms)
    parts = zip(stages.h2d_ms or none, stages.gpu_compute_ms, stages.d2h_ms or none, strict=True)
    return [math.fsum(part) for part in parts]
