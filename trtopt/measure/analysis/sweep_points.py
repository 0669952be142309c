"""Points of a sweep: their columns, and which of them to choose. Pure."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trtopt.records import Measurement, Spread, SweepPoint, SweepReport
from trtopt.records.base import Cell, Row

COLUMNS: dict[str, Callable[[SweepPoint], Cell]] = {
    "label": lambda one: one.label,
    "precision": lambda one: one.setting.precision,
    "batch": lambda one: one.setting.batch,
    "streams": lambda one: one.setting.streams,
    "axes": lambda one: " ".join(f"{name}={length}" for name, length in sorted(one.setting.axes.items())),
    "p50_ms": lambda one: one.latency.p50_ms if one.latency else None,
    "p90_ms": lambda one: one.latency.p90_ms if one.latency else None,
    "p99_ms": lambda one: one.latency.p99_ms if one.latency else None,
    "max_ms": lambda one: one.latency.max_ms if one.latency else None,
    "queries": lambda one: one.queries,
    "busy_p50_ms": lambda one: one.busy_latency.p50_ms if one.busy_latency else None,
    "busy_p99_ms": lambda one: one.busy_latency.p99_ms if one.busy_latency else None,
    "queries_per_s": lambda one: one.queries_per_s,
    "samples_per_s": lambda one: one.samples_per_s,
    "watts": lambda one: one.watts,
    "samples_per_joule": lambda one: one.samples_per_joule,
    "memory_bytes": lambda one: one.memory.peak_bytes if one.memory else None,
    "buffers_bytes": lambda one: one.memory.buffers_bytes if one.memory else None,
    "context_bytes": lambda one: one.memory.context_bytes if one.memory else None,
    "engine_bytes": lambda one: one.engine_bytes,
    "build_seconds": lambda one: one.build_seconds,
    "engine": lambda one: one.engine.path if one.engine else None,
    "engine_sha256": lambda one: one.engine.sha256 if one.engine else None,
    "untrustworthy": lambda one: "; ".join(one.untrustworthy),
    "unsteady": lambda one: "; ".join(one.unsteady),
    "failure": lambda one: one.failure,
}
"""The figures of a point, for files, rows and tables."""


def csv_of(report: SweepReport) -> bytes:
    """One row a point, failed ones included; what is not known is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows_of(report))
    return text.getvalue().encode("utf-8", errors="backslashreplace")


def rows_of(report: SweepReport) -> Iterator[Row]:
    """The figures of every point, by column."""
    return ({name: of(point) for name, of in COLUMNS.items()} for point in report.points)


def mean_watts(measurement: Measurement) -> float | None:
    """Energy over time, from before to after each group that counts; None if unknown.

    The counter of energy (nvmlDeviceGetTotalEnergyConsumption) has missed nothing between two readings, as
    readings of the power would have. Pauses for readings, a hundredth of the time, are part of it, and so are
    the queries whose stages were timed.
    """
    clocks = measurement.clocks
    counted = [index for index, reasons in enumerate(measurement.groups) if not reasons]
    spans = [(clocks[index], clocks[index + 1]) for index in counted if index + 1 < len(clocks)]
    seconds = sum(after.at_ms - before.at_ms for before, after in spans) / 1e3
    drawn = [
        after.energy_j - before.energy_j
        for before, after in spans
        if before.energy_j is not None and after.energy_j is not None
    ]
    return sum(drawn) / seconds if seconds > 0 and len(drawn) == len(spans) else None


_STEPS = (1.0, 2.0, 5.0)


def pareto_front(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """Indices of the points that no other beats, by rising cost.

    A point is beaten by one that costs no more and gains no less, and does better in one of the two. Of
    points that are equal in both the first counts.
    """
    order = sorted(range(len(costs)), key=lambda index: (costs[index], -gains[index], index))
    front: list[int] = []
    for index in order:
        if not front or gains[index] > gains[front[-1]]:
            front.append(index)
    return front


def knee(costs: Sequence[float], gains: Sequence[float]) -> int:
    """The index of the most gain for its cost: from there on, cost rises more steeply than gain.

    Of throughput and latency this is Kleinrock's power, whose maximum Jain calls the knee ("Congestion
    Avoidance in Computer Networks with a Connectionless Network Layer", 1988). It is on the front; of equal
    ones it gains most. Costs are above 0, infinite where unknown.
    """
    return max(range(len(costs)), key=lambda index: (gains[index] / costs[index], gains[index]))


def best_under(bound: float, costs: Sequence[float], gains: Sequence[float]) -> int | None:
    """The index of the highest gain at a cost of `bound` at most; the cheaper of two; None if none is."""
    fitting = [index for index, cost in enumerate(costs) if cost <= bound]
    return min(fitting, key=lambda index: (-gains[index], costs[index]), default=None)


def round_bounds(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, … from the first that `low` fits under to the first that `high` does."""
    if not 0 < low <= high:
        raise ValueError(f"no span of positive numbers: {low} to {high}")
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1
    series = [float(f"{step:g}e{decade}") for decade in range(first, last + 1) for step in _STEPS]
    top = next(bound for bound in series if bound >= high)
    return [bound for bound in series if low <= bound <= top]


@dataclass(frozen=True)
class Choices:
    """Points at one set of lengths of axes: at others a sample is other work.

    `costs_ms` are the latencies that they are compared by, see `deciding_ms`. `front` is by rising latency
    and throughput; `bests` has for each round bound the point with the most samples a second. Both are of
    trustworthy points; of all, where none is.
    """

    axes: dict[str, int]
    points: tuple[SweepPoint, ...]
    costs_ms: tuple[float, ...]
    front: tuple[SweepPoint, ...]
    knee: SweepPoint
    bests: tuple[tuple[float, SweepPoint], ...]


def is_decided_busy(report: SweepReport) -> bool:
    """Whether latency is that under full load, as for several streams: one query in flight differs."""
    return any(point.setting.streams > 1 for point in report.measured)


def deciding_ms(point: SweepPoint, *, busy: bool) -> float | None:
    """The latency that a point is compared by: its p99, or of too few queries for that the largest."""
    spread: Spread | None = point.busy_latency if busy else point.latency
    if spread is None:
        return None
    return spread.max_ms if spread.p99_ms is None else spread.p99_ms


def choices_of(report: SweepReport) -> tuple[Choices, ...]:
    """The choices at each set of lengths that has points with figures."""
    busy = is_decided_busy(report)
    groups: dict[tuple[tuple[str, int], ...], list[tuple[SweepPoint, float, float]]] = {}
    for point in report.measured:
        cost, rate = deciding_ms(point, busy=busy), point.samples_per_s
        if cost is not None and cost > 0 and rate is not None:  # an edited file may say 0
            axes = tuple(sorted(point.setting.axes.items()))
            groups.setdefault(axes, []).append((point, cost, rate))
    return tuple(_choices(dict(axes), group) for axes, group in groups.items())


def _choices(axes: dict[str, int], group: Sequence[tuple[SweepPoint, float, float]]) -> Choices:
    trustworthy = [one for one in group if not one[0].untrustworthy]
    points, costs, rates = zip(*(trustworthy or group), strict=True)
    front = pareto_front(costs, rates)
    bests = []
    for bound in round_bounds(min(costs), max(costs)):
        best = best_under(bound, costs, rates)
        if best is not None:
            bests.append((bound, points[best]))
    return Choices(
        axes=axes,
        points=tuple(point for point, _, _ in group),
        costs_ms=tuple(cost for _, cost, _ in group),
        front=tuple(points[index] for index in front),
        knee=points[knee(costs, rates)],
        bests=tuple(bests),
    )
