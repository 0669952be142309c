"""The record of `trtopt optimize`: what was found at each batch size, and whether the bounds are met."""

from __future__ import annotations

from trtopt.records.base import Record
from trtopt.records.checking import Violation
from trtopt.records.measuring import Trust
from trtopt.records.result import Result

OPTIMIZE_SCHEMA = "trtopt.optimize/1"


class OptimizedPoint(Record, frozen=True, kw_only=True):
    """A measured batch size.

    `precision` is what its engine was built in, None where the graph's types were kept. `latency_ms` is the
    percentile of the latency goal, p99 without one; None where there were too few samples for it.
    """

    batch: int
    precision: str | None
    latency_ms: float | None
    samples_per_s: float
    meets_goal: bool
    trust: Trust


class Optimized(Result, Record, frozen=True, kw_only=True):
    """The result of `trtopt optimize`.

    `best` is the point to deploy: the highest throughput among those that meet the latency goal, None if none
    does; `met` whether both the goal and the accuracy bound are kept.
    `folder` has the build and the result file. `goal` is the latency goal as given, such as `p99=10ms`;
    `cosine` the lowest of any output against the model, on `samples` samples; `violations` what keeps the
    engines from being accurate, and `alarms` what to see before they are used.
    """

    schema: str = OPTIMIZE_SCHEMA
    model: str
    folder: str
    backend: str
    device: str
    goal: str | None
    percentile: float
    points: tuple[OptimizedPoint, ...]
    best: OptimizedPoint | None
    cosine: float
    min_cosine: float
    is_accurate: bool
    met: bool
    data: str
    samples: int
    findings: int
    violations: tuple[Violation, ...] = ()
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
