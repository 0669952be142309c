"""How long a batch takes: what engines were measured to take, replayed in the order of time. Pure.

Machines have slow spells, in which one batch after the other is slow and queues grow. So a simulated batch is
as slow as the machine was when it was measured, at that time of the measurement, whatever engine it runs on.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from trtopt.records import ServingCost
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

    def at_level(self, running: int) -> Latencies:
        """Latencies where so many batches run."""
        return at_level(self.samples_ms, running)

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
    latencies = curve.at_level(running)
    if batch in latencies:
        return list(latencies[batch])
    nearest = min((size for size in latencies if size > batch), default=max(latencies))
    scale = curve.offer.time_ms(batch) / curve.offer.time_ms(nearest)
    return [value * scale for value in latencies[nearest]]
