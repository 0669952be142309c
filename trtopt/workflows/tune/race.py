"""What is minimised, and a candidate against the incumbent: a short race, and a full one if it may win."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np

from trtopt.errors import DeviceError
from trtopt.executors.api import Executor
from trtopt.measure.loop.interleaved import BLOCK_QUERIES, LoadedEngine, Variant
from trtopt.measure.loop.rounds import valid_rounds
from trtopt.measure.statistics.comparison import MIN_BLOCKS, Block, Comparison, Verdict
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.records import InterleavedRun, Objective, Samples, TensorSpec, TurnSamples
from trtopt.workflows.listener import Listener
from trtopt.workflows.race import ROUNDS, Setting, compare_turns, heat, race as run_heats, with_streams

_P99 = 99.0
_FOR_P99 = 100
"""No 99th percentile of fewer."""


@dataclass(frozen=True)
class Measure:
    """An objective: the mode it is measured in, its cost and unit, and each block's cost from its samples.

    `per_sample`: costs are those of a sample, so that engines of several batch sizes compare. A block has
    `block_queries` at least.
    """

    mode: Literal["latency", "throughput"]
    cost: str
    unit: str
    costs: Callable[[Samples], list[float]]
    per_sample: bool = False
    block_queries: int = BLOCK_QUERIES


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
}


def cost_blocks(measure: Measure, turns: TurnSamples, batch: int) -> list[Block]:
    """Each block's costs."""
    size = batch if measure.per_sample else 1
    return [[cost / size for cost in measure.costs(block)] for block in turns.blocks]


def typical(blocks: Sequence[Block]) -> float:
    """The median of all costs."""
    return median(cost for block in blocks for cost in block)


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
        return Cost(typical(self._blocks(run, (racer,))[0]), _copy_shares(run, racer))

    def _run(self, racers: Sequence[Racer], rounds: int | None) -> InterleavedRun:
        names, measure, setting = ("incumbent", "candidate")[: len(racers)], self.measure, self.setting
        variants = tuple(
            Variant(
                name=name,
                engine=index,
                contract=with_streams(setting.contract, one.streams),
                mode=measure.mode,
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
        kept = valid_rounds(run).turns
        return [cost_blocks(self.measure, turns, one.batch) for turns, one in zip(kept, racers, strict=True)]


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
