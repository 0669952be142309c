"""Reports of sweeps whose figures the test sets."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.support import examples
from trtopt.records import PointMemory, Spread, SweepPoint, SweepReport, SweepSetting


def spread(p99_ms: float | None, max_ms: float | None = None) -> Spread:
    return Spread(p50_ms=0.5, p90_ms=0.75, p99_ms=p99_ms, max_ms=p99_ms if max_ms is None else max_ms)


def point(batch: int, p99_ms: float | None, rate: float | None, **more: Any) -> SweepPoint:
    """A point of FP16 on one stream, unless `more` says otherwise."""
    fields = {"precision": "fp16", "streams": 1, "axes": {}}
    fields |= {name: more.pop(name) for name in tuple(more) if name in fields}
    setting = SweepSetting(batch=batch, **fields)
    given: dict[str, Any] = {
        "key": setting.key(examples.sweep_terms()),
        "setting": setting,
        "latency": spread(p99_ms),
        "busy_latency": spread(p99_ms),
        "samples_per_s": rate,
    }
    return SweepPoint(**{**given, **more})


def report_of(*points: SweepPoint) -> SweepReport:
    return msgspec.structs.replace(examples.sweep(), points=points)


MEMORY = PointMemory(peak_bytes=3 << 20, buffers_bytes=1 << 20)
REPORT = report_of(
    point(1, 1.0, 100.0, watts=50.0, memory=MEMORY),
    point(2, 1.25, 190.0, watts=50.0, memory=MEMORY),
    point(8, 4.0, 200.0, watts=50.0, memory=MEMORY),
    point(16, 4.5, 210.0, watts=50.0, memory=MEMORY, untrustworthy=("too hot",)),
    point(64, None, None, latency=None, failure="out of memory\nlast words"),
)
