"""What could serve: sets of measured engines, with numbers of workers, largest batches and delays. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

from numpy.random import RandomState

from trtopt.records import BatchPolicy, ServingCost
from trtopt.serving.planning.service_times import NO_COST, Costs, Curve, Service, added_ms, at_level

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
    def is_for_triton(self) -> bool:
        """Whether it runs every batch size from 1 to the largest, as Triton makes them."""
        return self.is_dynamic and all(
            [curve.low for curve in curves] == [1, *(curve.high + 1 for curve in curves[:-1])]
            for curves in self.curves.values()
        )

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
    """Engines of one family that serve together: what a batch takes on them, and what serving adds."""

    def __init__(self, engines: Sequence[MeasuredEngine], costs: Costs = NO_COST) -> None:
        self.engines = tuple(engines)
        self.costs = costs
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
    """One way to serve."""

    fleet: Fleet
    workers: int
    policy: BatchPolicy

    @cached_property
    def name(self) -> str:
        """For people."""
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        largest, delay_ms = self.policy.max_batch, self.policy.max_delay_ms
        return f"{self.fleet.name}, {workers}, batches up to {largest}, delay {delay_ms:.3g} ms"

    @cached_property
    def cost(self) -> ServingCost:
        """What serving adds."""
        return at_level(self.fleet.costs, self.workers)

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
        each_ms = sum(share * self.row_ms(bucket) for bucket, share in enumerate(shares))
        return 1e3 * self.workers / each_ms

    def row_ms(self, bucket: int) -> float:
        """What a row of the fleet's length of that index takes in a batch of the best size."""
        return min(self.typical_ms(bucket, rows) / rows for rows in range(1, self.policy.max_batch + 1))

    def expected_ms(self, rate: float, shares: Sequence[float]) -> float:
        """A rough latency, to decide what to simulate: one and a half times the smallest batch that
        keeps up with the rate.
        """
        for rows in range(1, self.policy.max_batch + 1):
            ms = sum(share * self.typical_ms(bucket, rows) for bucket, share in enumerate(shares))
            if self.workers * rows / ms * 1e3 >= rate:
                return 1.5 * ms
        return math.inf


def fleets(engines: Sequence[MeasuredEngine], max_engines: int, costs: Costs = NO_COST) -> Iterator[Fleet]:
    """All sets of up to so many engines of one family."""
    for family in sorted({engine.family for engine in engines}):
        members = [engine for engine in engines if engine.family == family]
        for count in range(1, max_engines + 1):
            for chosen in combinations(members, count):
                yield Fleet(chosen, costs)


def worker_counts(fleet: Fleet) -> list[int]:
    """How many workers all of the engines were measured with."""
    return sorted(frozenset.intersection(*(engine.levels for engine in fleet.engines)))
