"""How long a batch takes: drawn from what engines were measured to take. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.random import RandomState

from trtopt.records import ServingCost
from trtopt.serving.engine_selection import EngineSelector, Offer

Latencies = Mapping[int, Sequence[float]]
"""By batch size: measured latencies in milliseconds."""


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
        """Resampled with replacement: another measurement that might have been (the bootstrap)."""
        return Curve(
            self.low,
            self.high,
            {
                many: {
                    batch: tuple(np.asarray(values)[random.randint(0, len(values), len(values))].tolist())
                    for batch, values in sorted(latencies.items())
                }
                for many, latencies in sorted(self.samples_ms.items())
            },
        )


FREE = ServingCost()


@dataclass(frozen=True)
class Costs:
    """What serving adds: by the name of a setup that had a trial run, else by number of workers.

    Workers share the interpreter, and take time from each other.
    """

    by_workers: Mapping[int, ServingCost]
    from_trials: Mapping[str, ServingCost] = field(default_factory=dict)

    def of(self, setup: str, workers: int) -> ServingCost:
        """What it adds to a setup."""
        return self.from_trials.get(setup) or at_level(self.by_workers, workers)


NO_COST = Costs({1: FREE})


def added_ms(cost: ServingCost, rows: int) -> float:
    """What serving adds to a batch of so many requests, on average."""
    return cost.batch_ms + rows * cost.request_ms


class Service:
    """Draws how long batches of one shape take on a set of engines, chosen as the runtime chooses them."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        self.selector = EngineSelector([curve.offer for curve in curves])
        self._curves = tuple(curves)
        self._parts: dict[tuple[int, int], list[list[float]]] = {}
        self._typical_ms: dict[tuple[int, int], float] = {}

    def draw_s(self, rows: int, running: int, uniform: Sequence[float]) -> float:
        """Seconds for `rows` requests while `running` batches run, this one included.

        `uniform` holds a draw from [0, 1) for each piece at least; there are `rows` pieces at most.
        """
        parts = self._parts.get((rows, running))
        if parts is None:
            parts = self._parts[rows, running] = self._samples(rows, running)
        ms = 0.0
        for values, draw in zip(parts, uniform, strict=False):
            ms += values[int(draw * len(values))]
        return ms / 1e3

    def typical_ms(self, rows: int, running: int = 1) -> float:
        """The mean for a batch of that many requests."""
        known = self._typical_ms.get((rows, running))
        if known is None:
            parts = self._samples(rows, running)
            known = sum(float(np.mean(values)) for values in parts)
            self._typical_ms[rows, running] = known
        return known

    def _samples(self, rows: int, running: int) -> list[list[float]]:
        """For each piece that runs, one after the other, the latencies to draw from."""
        return [_at(self._curves[piece.offer], piece.batch, running) for piece in self.selector.pieces(rows)]


def _at(curve: Curve, batch: int, running: int) -> list[float]:
    """Measured at that batch, or at the next larger one (else the largest), scaled by the medians."""
    latencies = curve.at_level(running)
    if batch in latencies:
        return list(latencies[batch])
    nearest = min((size for size in latencies if size > batch), default=max(latencies))
    scale = curve.offer.time_ms(batch) / curve.offer.time_ms(nearest)
    return [value * scale for value in latencies[nearest]]
