"""A candidate against the incumbent, in turns in one process: a short race, and a full one if it may win."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from trtopt.errors import DeviceError, UsageError
from trtopt.executors.api import Executor
from trtopt.measure.contracts import changed
from trtopt.measure.loop.interleaved import LoadedEngine
from trtopt.measure.loop.rounds import valid_rounds
from trtopt.measure.statistics.comparison import MIN_BLOCKS, Block, Comparison, Verdict, compare
from trtopt.records import InterleavedRun
from trtopt.workflows.bench.interleaved import Setting, measure_in_turns, turns_job
from trtopt.workflows.listener import Listener
from trtopt.workflows.tune.objective import Measure, cost_blocks, joules, typical


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
    """The candidate's cost against the incumbent's; one that is slower after a few rounds gets no more.

    Raises:
        TrtoptError: what keeps them from being measured.
    """
    racers = (incumbent, candidate)
    for rounds in (MIN_BLOCKS, None):
        run = _run(racers, measure, setting, rounds, executor, listener)
        evaluated = valid_rounds(run)
        blocks = _blocks(run, racers, measure)
        found = compare(*blocks, threshold=threshold, interfered=evaluated.interfered)
        if found.verdict is Verdict.SLOWER:
            break
    return found


def cost_of(
    racer: Racer, measure: Measure, setting: Setting, executor: Executor, listener: Listener
) -> float:
    """The typical cost of an engine on its own.

    Raises:
        TrtoptError: what keeps it from being measured.
    """
    run = _run((racer,), measure, setting, None, executor, listener)
    return typical(_blocks(run, (racer,), measure)[0])


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
            contract=changed(setting.contract, {"streams": one.streams})
            if one.streams > 1
            else setting.contract,
        )
        for variant, one in zip(job.variants, racers, strict=True)
    )
    job = msgspec.structs.replace(job, variants=variants, rounds=rounds or job.rounds)
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
