"""What a sweep's points offer: front, knee and the best under each latency, among points of the same work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtopt.measure.analysis.tradeoffs import best_under, knee, pareto_front, round_bounds
from trtopt.records import Spread, SweepPoint, SweepReport


@dataclass(frozen=True)
class Choices:
    """Points at one set of lengths of axes: at others a sample is other work.

    `costs_ms` are the latencies that they are compared by, see `deciding_ms`. `front` is by rising latency;
    `bests` has for each round bound the point with the most samples a second.
    """

    axes: dict[str, int]
    points: tuple[SweepPoint, ...]
    costs_ms: tuple[float, ...]
    front: tuple[SweepPoint, ...]
    knee: SweepPoint | None
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
        if cost is not None and rate is not None:
            axes = tuple(sorted(point.setting.axes.items()))
            groups.setdefault(axes, []).append((point, cost, rate))
    return tuple(_choices(dict(axes), group) for axes, group in groups.items())


def _choices(axes: dict[str, int], group: Sequence[tuple[SweepPoint, float, float]]) -> Choices:
    points, costs, rates = zip(*group, strict=True)
    front = pareto_front(costs, rates)
    turn = knee([costs[index] for index in front], [rates[index] for index in front])
    bests = []
    for bound in round_bounds(min(costs), max(costs)):
        best = best_under(bound, costs, rates)
        if best is not None:
            bests.append((bound, points[best]))
    return Choices(
        axes=axes,
        points=points,
        costs_ms=costs,
        front=tuple(points[index] for index in front),
        knee=None if turn is None else points[front[turn]],
        bests=tuple(bests),
    )
