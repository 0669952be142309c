"""What could serve, and how long its batches take: engines, sets of them, workers, batches, delays. Pure.

Machines have slow spells, in which one batch after the other is slow and queues grow. So a simulated batch is
as slow as the machine was when it was measured, at that time of the measurement, whatever engine it runs on.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations
from typing import TypeVar

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from trtopt.records import BatchPolicy, ServingCost
from trtopt.serving.engine_selection import EngineSelector, Offer

Latencies = Mapping[int, Sequence[float]]
"""By batch size: measured latencies in milliseconds, in the order of time."""

_BLOCKS = 6
"""Few, so that a block is longer than a slow spell."""


_T = TypeVar("_T")


def at_level(levels: Mapping[int, _T], running: int) -> _T:
    """Where so many batches run: what was measured with the next count up, or with the most."""
    return levels[min((many for many in levels if many >= running), default=max(levels))]


@dataclass(frozen=True)
class Curve:
    """What an engine, or one shape of it, was measured to take for batches from `low` to `high`.

    `samples_ms` holds latencies by how many batches ran at a time; one at a time (1) is always among them.
    """

    low: int
    high: int
    samples_ms: Mapping[int, Latencies]

    @cached_property
    def offer(self) -> Offer:
        """As the runtime's engine selection sees it: medians of batches that ran one at a time."""
        single = self.samples_ms[1]
        medians = tuple((batch, float(np.median(single[batch]))) for batch in sorted(single))
        return Offer(self.low, self.high, medians)

    def resampled(self, random: RandomState) -> Curve:
        """Resampled with replacement: another measurement that might have been.

        In blocks, which keep what is slow together (Künsch, Annals of Statistics 17(3), 1989).
        """
        return Curve(
            self.low,
            self.high,
            {
                many: {
                    batch: tuple(_in_blocks(np.asarray(values), random).tolist())
                    for batch, values in sorted(latencies.items())
                }
                for many, latencies in sorted(self.samples_ms.items())
            },
        )


def _in_blocks(values: NDArray[np.float64], random: RandomState) -> NDArray[np.float64]:
    count = len(values)
    length = max(1, count // _BLOCKS)
    begins = random.randint(0, count - length + 1, -(-count // length))
    drawn: NDArray[np.float64] = values[(begins[:, None] + np.arange(length)).ravel()[:count]]
    return drawn


class Slowness:
    """How slow a machine is at a time: measured latencies over their medians, replayed.

    All that the engines were measured for lies one after the other; the replay begins anywhere, and begins
    again. What begins at a time is as slow as the query that was measured next, not the one in progress: long
    ones are in progress more often than they begin.
    """

    def __init__(self, services: Sequence[Service], random: RandomState) -> None:
        self._ends_s, self._factors = _one_after_the_other(tuple(services))
        self._whole_s, self._count = self._ends_s[-1], len(self._factors)
        self._phase_s = random.random_sample() * self._whole_s
        self._at = self._since = 0

    def at(self, now_s: float) -> float:
        """By what a batch takes longer than usual, or shorter. What begins together differs."""
        at = bisect(self._ends_s, (now_s + self._phase_s) % self._whole_s)
        self._since = self._since + 1 if at == self._at else 0
        self._at = at
        return self._factors[(at + 1 + self._since) % self._count]


@lru_cache(maxsize=2)
def _one_after_the_other(services: tuple[Service, ...]) -> tuple[list[float], list[float]]:
    """When each latency that was measured ended, in seconds, and its factor."""
    series = [one for service in services for one in service.series]
    factors = np.concatenate([one / (np.median(one) or 1.0) for one in series])
    ends_s = np.cumsum(np.concatenate(series)) / 1e3
    return ends_s.tolist(), factors.tolist()


FREE = ServingCost()


Costs = Mapping[int, ServingCost]
"""What serving adds, by number of workers: they share the interpreter, and take time from each other."""

NO_COST: Costs = {1: FREE}


def added_ms(cost: ServingCost, rows: int) -> float:
    """What serving adds to a batch of so many requests, on average."""
    return cost.batch_ms + rows * cost.request_ms


class Service:
    """How long batches of one shape take on a set of engines, chosen as the runtime chooses them."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        self.selector = EngineSelector([curve.offer for curve in curves])
        self._curves = tuple(curves)
        self._parts: dict[tuple[int, int], list[tuple[float, float]]] = {}
        self._typical_ms: dict[tuple[int, int], float] = {}

    @cached_property
    def series(self) -> list[NDArray[np.float64]]:
        """All that was measured with one batch at a time, each in the order of time."""
        return [np.asarray(ms) for curve in self._curves for ms in curve.samples_ms[1].values()]

    @cached_property
    def _excess_ms(self) -> list[tuple[float, float]]:
        """Of each series its median, and how much longer its longest query took."""
        return [(float(np.median(one)), float(one.max() - np.median(one))) for one in self.series]

    def takes_s(self, rows: int, running: int, slow: Iterable[float]) -> float:
        """Seconds for `rows` requests while `running` batches run, this one included.

        `slow` has a factor of `Slowness` for each piece at least; there are `rows` pieces at most. A stall
        that a quick engine was measured in costs a slow one as much, not more in proportion: no piece takes
        longer than it was measured to, or by more than what a quicker one lost.
        """
        parts = self._parts.get((rows, running))
        if parts is None:
            parts = self._parts[rows, running] = [
                self._usual_and_longest(ms) for ms in self._samples(rows, running)
            ]
        ms = 0.0
        for (usual_ms, longest_ms), factor in zip(parts, slow, strict=False):
            ms += min(usual_ms * factor, longest_ms)
        return ms / 1e3

    def _usual_and_longest(self, latencies: Sequence[float]) -> tuple[float, float]:
        usual_ms = float(np.median(latencies))
        excess_ms = max((excess for median, excess in self._excess_ms if median <= usual_ms), default=0.0)
        return usual_ms, max(float(np.max(latencies)), usual_ms + excess_ms)

    def typical_ms(self, rows: int, running: int = 1) -> float:
        """The mean for a batch of that many requests."""
        known = self._typical_ms.get((rows, running))
        if known is None:
            parts = self._samples(rows, running)
            known = sum(float(np.mean(values)) for values in parts)
            self._typical_ms[rows, running] = known
        return known

    def _samples(self, rows: int, running: int) -> list[list[float]]:
        """For each piece that runs, one after the other, its latencies."""
        return [_at(self._curves[piece.offer], piece.batch, running) for piece in self.selector.pieces(rows)]


def _at(curve: Curve, batch: int, running: int) -> list[float]:
    """Measured at that batch, or at the next larger one (else the largest), scaled by the medians."""
    latencies = at_level(curve.samples_ms, running)
    if batch in latencies:
        return list(latencies[batch])
    nearest = min((size for size in latencies if size > batch), default=max(latencies))
    scale = curve.offer.time_ms(batch) / curve.offer.time_ms(nearest)
    return [value * scale for value in latencies[nearest]]


DELAYS = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Delays to try, as shares of the latency to keep."""


@dataclass(frozen=True)
class EngineMemory:
    """Bytes of the device: with one context, and for each further one."""

    first_bytes: int
    further_bytes: int


@dataclass(frozen=True)
class MeasuredEngine:
    """An engine with its curves by the length that it runs; 0 for a model without lengths.

    Each optimisation profile has a curve of its own, by ascending batch, for the batches that it is to run.
    Only engines of one `family` share a pool: with another precision in it, what is answered would depend on
    who else came.
    """

    name: str
    sha256: str
    family: str
    curves: Mapping[int, tuple[Curve, ...]]
    memory: EngineMemory | None = None

    @property
    def levels(self) -> frozenset[int]:
        """How many batches at a time it was measured with, at every length."""
        return frozenset.intersection(*(frozenset(curve.samples_ms) for curve in self._all_curves))

    @property
    def largest(self) -> int:
        """The largest batch that it runs."""
        return max(curve.high for curve in self._all_curves)

    @property
    def is_dynamic(self) -> bool:
        """Whether it runs more than one batch size."""
        return any(curve.low < self.largest for curve in self._all_curves)

    @property
    def _all_curves(self) -> list[Curve]:
        return [curve for curves in self.curves.values() for curve in curves]

    def resampled(self, random: RandomState) -> MeasuredEngine:
        """The same with resampled curves."""
        drawn = {
            length: tuple(curve.resampled(random) for curve in curves)
            for length, curves in sorted(self.curves.items())
        }
        return replace(self, curves=drawn)


class Fleet:
    """Engines of one family that serve together, and what a batch takes on them."""

    def __init__(self, engines: Sequence[MeasuredEngine]) -> None:
        self.engines = tuple(engines)
        self.lengths = tuple(sorted({length for engine in engines for length in engine.curves}))

    @cached_property
    def services(self) -> tuple[Service, ...]:
        """One for each length, in their order."""
        return self.drawing(self.engines)

    def drawing(self, engines: Sequence[MeasuredEngine]) -> tuple[Service, ...]:
        """As `services`, from other curves of the same engines."""
        return tuple(
            Service([curve for engine in engines for curve in engine.curves.get(length, ())])
            for length in self.lengths
        )

    @property
    def name(self) -> str:
        """The engines by name."""
        return " + ".join(engine.name for engine in self.engines)

    @property
    def largest(self) -> int:
        """The largest batch that one of the engines runs."""
        return max(engine.largest for engine in self.engines)

    @cached_property
    def least_ms(self) -> float:
        """The least that any batch took: no request is answered sooner."""
        curves = [curve for engine in self.engines for ones in engine.curves.values() for curve in ones]
        return min(float(min(ms)) for curve in curves for ms in curve.samples_ms[1].values())

    def bucket(self, length: int) -> int | None:
        """The index of the shortest length that holds it; None if none does."""
        return next((index for index, one in enumerate(self.lengths) if one >= length), None)

    def largest_batches(self) -> list[int]:
        """What the largest batch may be: one smaller than a fixed engine's leaves that engine out."""
        needed = max((engine.largest for engine in self.engines if not engine.is_dynamic), default=1)
        measured = {
            batch
            for engine in self.engines
            if engine.is_dynamic
            for curves in engine.curves.values()
            for curve in curves
            for batch in curve.samples_ms[1]
            if needed <= batch <= self.largest
        }
        return sorted(measured | {self.largest})

    def batches_used(self, max_batch: int) -> list[set[int]]:
        """For each engine, at which batch sizes it runs if batches hold 1 to `max_batch` requests."""
        used: list[set[int]] = [set() for _ in self.engines]
        for length, service in zip(self.lengths, self.services, strict=True):
            here = [index for index, one in enumerate(self.engines) for _ in one.curves.get(length, ())]
            for rows in range(1, max_batch + 1):
                for piece in service.selector.pieces(rows):
                    used[here[piece.offer]].add(piece.batch)
        return used


@dataclass(frozen=True)
class Setup:
    """One way to serve, and what serving adds to batches."""

    fleet: Fleet
    workers: int
    policy: BatchPolicy
    cost: ServingCost = FREE

    @cached_property
    def name(self) -> str:
        """For people."""
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        largest, delay_ms = self.policy.max_batch, self.policy.max_delay_ms
        return f"{self.fleet.name}, {workers}, batches up to {largest}, delay {delay_ms:.3g} ms"

    def typical_ms(self, bucket: int, rows: int) -> float:
        """The mean for a batch of so many requests of the fleet's length of that index, all workers busy."""
        return self.fleet.services[bucket].typical_ms(rows, self.workers) + added_ms(self.cost, rows)

    def memory_bytes(self) -> int | None:
        """Of the device, at most: a context for each worker, engine and batch size that is run on it.

        None if one of the engines was not measured for it.
        """
        total = 0
        for engine, batches in zip(
            self.fleet.engines, self.fleet.batches_used(self.policy.max_batch), strict=True
        ):
            if engine.memory is None:
                return None
            contexts = self.workers * len(batches) * len(engine.curves)
            total += engine.memory.first_bytes + (contexts - 1) * engine.memory.further_bytes
        return total

    def capacity(self, shares: Sequence[float]) -> float:
        """Requests a second beyond which queues only grow: all workers busy with batches of the best size.

        `shares` are the shares of requests by the fleet's lengths.
        """
        sizes = range(1, self.policy.max_batch + 1)
        each_ms = sum(
            share * min(self.typical_ms(bucket, rows) / rows for rows in sizes)
            for bucket, share in enumerate(shares)
        )
        return 1e3 * self.workers / each_ms

    def expected_ms(self, rate: float, shares: Sequence[float]) -> float:
        """A rough latency, to decide what to simulate: one and a half times the smallest batch that
        keeps up with the rate.
        """
        for rows in range(1, self.policy.max_batch + 1):
            ms = sum(share * self.typical_ms(bucket, rows) for bucket, share in enumerate(shares))
            if self.workers * rows / ms * 1e3 >= rate:
                return 1.5 * ms
        return math.inf


def fleets(engines: Sequence[MeasuredEngine], max_engines: int) -> Iterator[Fleet]:
    """All sets of up to so many engines of one family."""
    for family in sorted({engine.family for engine in engines}):
        members = [engine for engine in engines if engine.family == family]
        for count in range(1, max_engines + 1):
            for chosen in combinations(members, count):
                yield Fleet(chosen)


def worker_counts(fleet: Fleet) -> list[int]:
    """How many workers all of the engines were measured with."""
    return sorted(frozenset.intersection(*(engine.levels for engine in fleet.engines)))
