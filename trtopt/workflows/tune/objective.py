"""What is minimised, as the blocks of an interleaved run show it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

import numpy as np

from trtopt.measure.loop.interleaved import BLOCK_QUERIES
from trtopt.measure.statistics.comparison import Block
from trtopt.records import ClockReading, InterleavedRun, Objective, Samples, TurnSamples

_P99 = 99.0
_BACKLOG = 0.25
_FOR_P99 = 100
"""No 99th percentile of fewer."""


@dataclass(frozen=True)
class Measure:
    """An objective: the mode it is measured in, its cost and unit, and each block's cost from its samples.

    `per_sample`: costs are those of a sample, so that engines of several batch sizes compare. A block has
    `block_queries` at least, and at a `rate` it is an open loop of so many requests per second.
    """

    mode: Literal["latency", "throughput"]
    cost: str
    unit: str
    costs: Callable[[Samples], list[float]]
    per_sample: bool = False
    needs_energy: bool = False
    block_queries: int = BLOCK_QUERIES
    rate: float | None = None


def _per_query_ms(block: Samples) -> list[float]:
    """From the first start to the last end, over the queries."""
    return [(max(block.end_ms) - min(block.start_ms)) / len(block.end_ms)]


MEASURES: dict[Objective, Measure] = {
    "latency": Measure("latency", "latency", "ms", lambda block: block.latency_ms),
    "p99": Measure(
        "latency",
        "p99 latency",
        "ms (p99)",
        lambda block: [float(np.percentile(block.latency_ms, _P99))],
        block_queries=_FOR_P99,
    ),
    "throughput": Measure("throughput", "time per sample", "ms per sample", _per_query_ms, per_sample=True),
    "energy": Measure(
        "throughput", "energy per sample", "J per sample", _per_query_ms, per_sample=True, needs_energy=True
    ),
}


def measure_for(objective: Objective, rate: float | None) -> Measure:
    """What an objective minimises; at a rate of requests, if one is given."""
    found = MEASURES[objective]
    return found if rate is None else replace(found, unit=f"{found.unit[:-1]} at {rate:g}/s)", rate=rate)


def capacity(blocks: Sequence[Samples]) -> float | None:
    """Requests per second that were served, where a backlog grew; None where the engine kept up.

    It did not if serving went on after the last arrival for a quarter of the time of all arrivals.
    """
    windows = [max(block.start_ms) - min(block.start_ms) for block in blocks]
    behind = [max(block.end_ms) - max(block.start_ms) for block in blocks]
    if median(late / max(window, 1e-9) for late, window in zip(behind, windows, strict=True)) < _BACKLOG:
        return None
    return median(len(block.end_ms) / (max(block.end_ms) - min(block.start_ms)) * 1e3 for block in blocks)


def cost_blocks(measure: Measure, turns: TurnSamples, batch: int) -> list[Block]:
    """Each block's costs, without energy: that takes `joules`."""
    size = batch if measure.per_sample else 1
    return [[cost / size for cost in measure.costs(block)] for block in turns.blocks]


def joules(run: InterleavedRun, index: int, batch: int) -> list[Block] | None:
    """Joules per sample of each block of a subject: the turn's mean power over the rate of its block.

    None where the device reports neither energy nor power.
    """
    found: list[Block] = []
    places = [turn for turn, subject in enumerate(run.order) if subject == index]
    loaded = {one.round * len(run.turns): one.clock for one in run.loadings}
    for place, block in zip(places, run.turns[index].blocks, strict=False):
        watts = _watts(loaded.get(place, run.clocks[place]), run.clocks[place + 1])
        if watts is None:
            return None
        found.append([watts * cost / 1e3 / batch for cost in _per_query_ms(block)])
    return found


def _watts(before: ClockReading, after: ClockReading) -> float | None:
    seconds = (after.at_ms - before.at_ms) / 1e3
    if before.energy_j is not None and after.energy_j is not None and seconds > 0:
        return (after.energy_j - before.energy_j) / seconds
    if before.power_w is not None and after.power_w is not None:
        return (before.power_w + after.power_w) / 2
    return None


def typical(blocks: Sequence[Block]) -> float:
    """The median of all costs."""
    return median(cost for block in blocks for cost in block)
