"""A candidate against the incumbent, in turns in one process: a short race, and a full one if it may win."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from trtopt.errors import DeviceError, UsageError
from trtopt.executors.api import Executor
from trtopt.measure.contracts import changed
from trtopt.measure.loop.interleaved import LoadedEngine
from trtopt.measure.loop.rounds import valid_rounds
from trtopt.measure.statistics.comparison import MIN_BLOCKS, Block, Comparison, Verdict, compare
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.records import InterleavedRun, TensorSpec
from trtopt.workflows.bench.interleaved import Setting, measure_in_turns, turns_job
from trtopt.workflows.listener import Listener
from trtopt.workflows.tune.objective import Measure, capacity, cost_blocks, joules, typical

_SUSTAINED = 0.7
"""Of what an engine serves at most, a rate at which queues stay short."""


@dataclass(frozen=True)
class Racer:
    """An engine with the batch size and the streams that it is run with."""

    engine: LoadedEngine
    batch: int
    streams: int


def race(
    incumbent: Racer,
    candidate: Racer,
    measure: Measure,
    setting: Setting,
    threshold: float,
    executor: Executor,
    listener: Listener,
) -> Comparison:
    """The candidate's cost against the incumbent's; one that is slower after a few rounds gets no more."""
    racers = (incumbent, candidate)
    for rounds in (MIN_BLOCKS, None):
        run = _run(racers, measure, setting, rounds, executor, listener)
        evaluated = valid_rounds(run)
        blocks = _blocks(run, racers, measure)
        found = compare(
            *blocks,
            threshold=threshold,
            interfered=evaluated.interfered,
            failures=evaluated.failures,
            loads=evaluated.loads,
            is_reversed=evaluated.is_reversed(),
            what=measure.cost,
        )
        if found.verdict is Verdict.SLOWER:
            break
    return found


@dataclass(frozen=True)
class Cost:
    """What an engine costs on its own, and the share of a query that copying each input and output takes."""

    cost: float
    copied: dict[str, float]


def cost_of(racer: Racer, measure: Measure, setting: Setting, executor: Executor, listener: Listener) -> Cost:
    """The typical cost of an engine on its own."""
    run = _run((racer,), measure, setting, None, executor, listener)
    served = None if measure.rate is None else capacity(run.turns[0].blocks)
    if served is not None:
        raise UsageError(
            f"--rate {measure.rate:g}: the baseline serves {served:.4g} requests per second, and a queue "
            "would grow without end",
            f"give --rate {max(1, int(_SUSTAINED * served))} or less, or requests of a larger batch",
        )
    return Cost(typical(_blocks(run, (racer,), measure)[0]), _copied(run, racer))


def _copied(run: InterleavedRun, racer: Racer) -> dict[str, float]:
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


def _run(
    racers: Sequence[Racer],
    measure: Measure,
    setting: Setting,
    rounds: int | None,
    executor: Executor,
    listener: Listener,
) -> InterleavedRun:
    names = ("incumbent", "candidate")[: len(racers)]
    job = turns_job([one.engine for one in racers], names, "tuning", racers[-1].batch, setting)
    variants = tuple(
        msgspec.structs.replace(
            variant,
            mode=measure.mode,
            rate=measure.rate,
            contract=changed(setting.contract, {"streams": one.streams})
            if one.streams > 1
            else setting.contract,
        )
        for variant, one in zip(job.variants, racers, strict=True)
    )
    job = msgspec.structs.replace(
        job, variants=variants, rounds=rounds or job.rounds, block_queries=measure.block_queries
    )
    label = " against ".join(reversed(names))
    (run,) = measure_in_turns([job], [label], listener, setting.timeout, executor)
    if run.failure is not None:
        raise DeviceError(run.failure, "check the GPU with nvidia-smi")
    return run


def _blocks(run: InterleavedRun, racers: Sequence[Racer], measure: Measure) -> list[list[Block]]:
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
