"""What is minimised, and a candidate against the incumbent: a short race, and a full one if it may win."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

import numpy as np

from trtopt.errors import DeviceError, UsageError
from trtopt.executors.api import Executor
from trtopt.measure.loop.interleaved import BLOCK_QUERIES, LoadedEngine, Variant
from trtopt.measure.loop.rounds import valid_rounds
from trtopt.measure.statistics.comparison import MIN_BLOCKS, Block, Comparison, Verdict
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.records import ClockReading, InterleavedRun, Objective, Samples, TensorSpec, TurnSamples
from trtopt.workflows.listener import Listener
from trtopt.workflows.race import ROUNDS, Setting, compare_turns, heat, race as run_heats, with_streams

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


_SUSTAINED = 0.7
"""Of what an engine serves at most, a rate at which queues stay short."""


@dataclass(frozen=True)
class Racer:
    """An engine with the batch size and the streams that it is run with."""

    engine: LoadedEngine
    batch: int
    streams: int


@dataclass(frozen=True)
class Cost:
    """What an engine costs on its own, and the share of a query that copying each input and output takes."""

    cost: float
    copied: dict[str, float]


@dataclass(frozen=True)
class Track:
    """What engines are raced on: an objective, how it is measured, where, and who hears of it."""

    measure: Measure
    setting: Setting
    threshold: float
    executor: Executor
    listener: Listener

    def race(self, incumbent: Racer, candidate: Racer) -> Comparison:
        """The candidate's cost against the incumbent's; one slower after a few rounds gets no more."""
        racers = (incumbent, candidate)
        for rounds in (MIN_BLOCKS, None):
            run = self._run(racers, rounds)
            found = compare_turns(
                valid_rounds(run),
                threshold=self.threshold,
                blocks=self._blocks(run, racers),
                what=self.measure.cost,
            )
            if found.verdict is Verdict.SLOWER:
                break
        return found

    def cost_of(self, racer: Racer) -> Cost:
        """The typical cost of an engine on its own."""
        run = self._run((racer,), None)
        rate = self.measure.rate
        served = None if rate is None else capacity(run.turns[0].blocks)
        if served is not None:
            raise UsageError(
                f"--rate {rate:g}: the baseline serves {served:.4g} requests per second, and a queue "
                "would grow without end",
                f"give --rate {max(1, int(_SUSTAINED * served))} or less, or requests of a larger batch",
            )
        return Cost(typical(self._blocks(run, (racer,))[0]), _copy_shares(run, racer))

    def _run(self, racers: Sequence[Racer], rounds: int | None) -> InterleavedRun:
        names, measure, setting = ("incumbent", "candidate")[: len(racers)], self.measure, self.setting
        variants = tuple(
            Variant(
                name=name,
                engine=index,
                contract=with_streams(setting.contract, one.streams),
                mode=measure.mode,
                rate=measure.rate,
            )
            for index, (name, one) in enumerate(zip(names, racers, strict=True))
        )
        one = heat(
            " against ".join(reversed(names)),
            [racer.engine for racer in racers],
            (),
            "tuning",
            racers[-1].batch,
            setting,
            rounds,
            variants=variants,
            block_s=setting.duration / ROUNDS,  # of a short race, too
            block_queries=measure.block_queries,
        )
        (run,) = run_heats([one], self.listener, setting.timeout, self.executor)
        if run.failure is not None:
            raise DeviceError(run.failure, "check the GPU with nvidia-smi")
        return run

    def _blocks(self, run: InterleavedRun, racers: Sequence[Racer]) -> list[list[Block]]:
        measure = self.measure
        if not measure.needs_energy:
            kept = valid_rounds(run).turns
            return [cost_blocks(measure, turns, one.batch) for turns, one in zip(kept, racers, strict=True)]
        found = [joules(run, index, one.batch) for index, one in enumerate(racers)]
        blocks = [one for one in found if one is not None]
        if len(blocks) < len(racers):
            raise UsageError(
                f"--objective energy: {run.environment.device.name} reports neither energy nor power",
                "choose latency, p99 or throughput",
            )
        return blocks


def _copy_shares(run: InterleavedRun, racer: Racer) -> dict[str, float]:
    """By the bytes of each tensor; none under a contract without transfers."""
    artifact, blocks = racer.engine.artifact, run.turns[0].blocks
    whole = median(value for block in blocks for value in block.latency_ms)
    shares: dict[str, float] = {}
    for specs, times in (
        (artifact.inputs, [value for block in blocks for value in block.h2d_ms]),
        (artifact.outputs, [value for block in blocks for value in block.d2h_ms]),
    ):
        if not times or whole <= 0:
            continue
        sizes = {spec.name: _bytes_at(spec, racer.batch) for spec in specs}
        total = max(sum(sizes.values()), 1)
        shares |= {name: median(times) / whole * size / total for name, size in sizes.items()}
    return shares


def _bytes_at(spec: TensorSpec, batch: int) -> int:
    """With the batch, and 1 for any other length that is open."""
    first, *others = (*spec.shape, 1)
    axes = [
        first if isinstance(first, int) else batch,
        *(one if isinstance(one, int) else 1 for one in others),
    ]
    return math.prod(axes) * numpy_dtype(spec.dtype).itemsize
