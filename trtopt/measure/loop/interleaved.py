"""Subjects that take turns in one process: slow drift and a neighbour's noise fall on all of them alike.

A subject (its engine, context, buffers, stream and graph) is faster or slower for as long as it stays loaded.
So between rounds all subjects are closed and loaded again, as often as the time allows, each time
in another order. A turn begins with queries that warm the subject up after the switch (they are no samples),
then takes one block of samples.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Literal

import msgspec
import numpy as np

from trtopt.device.api import ProgressSink, Session, Target
from trtopt.errors import DeviceError, DeviceMemoryError
from trtopt.measure.analysis.interference import Interference, evaluate_groups
from trtopt.measure.engine import LoadedEngine, check_stream_memory, input_batch, vouched_engine
from trtopt.measure.loop.inference_stream import InferenceStream, Inputs
from trtopt.measure.loop.sampling import (
    Criterion,
    Subject,
    Until,
    no_garbage_collection,
    open_inference_streams,
    sample,
    terms_of,
)
from trtopt.measure.loop.stopping import WarmUp
from trtopt.measure.statistics.comparison import MIN_LOADS, by_load, in_turns
from trtopt.records import (
    ClockReading,
    Contract,
    Environment,
    InterleavedRun,
    Job,
    Loading,
    Purpose,
    Record,
    Samples,
    TurnSamples,
)

SWITCH_QUERIES = 3
SWITCH_S = 0.02
"""So much is run after a switch before samples count: until then caches are the other subject's."""

BLOCK_QUERIES = 5
"""A block holds no fewer, however slow the engine."""


_TURNS_SHARE = 2.0
"""Turns take no more than this share of the time of their blocks, but for the rounds that are needed."""

RELOADING_SHARE = 0.5
"""Loading again takes no more than this share of the time of the turns, but for the loads that are needed."""


class Variant(Record, frozen=True, kw_only=True):
    """One subject: which engine (an index), under which terms."""

    name: str
    engine: int
    contract: Contract
    mode: Literal["latency", "throughput"] = "latency"


class InterleaveJob(Job[InterleavedRun], frozen=True, kw_only=True, tag="interleave"):
    """A worker's job: load `engines`, run one block of each of `variants` in each of `rounds`.

    `label` is what listeners call it.

    Where queries are so slow that the rounds would take more than twice the time of their blocks, there are
    fewer of them, but `least_rounds`.

    `data` is what `trtopt.data.open_data` takes; None gives seeded random input. A block has
    `block_queries` at least. With `reloads` all are loaded again between rounds; a job that is one of several
    processes of the same need not.
    """

    label: str
    engines: tuple[LoadedEngine, ...]
    variants: tuple[Variant, ...]
    rounds: int
    least_rounds: int = 0
    purpose: Purpose
    data: str | None
    warmup_s: float
    block_s: float
    block_queries: int = BLOCK_QUERIES
    reloads: bool = True
    seed: int = msgspec.field(default_factory=partial(secrets.randbits, 32))
    """What the order of turns is drawn from; see `measure.statistics.comparison.in_turns`."""


def interleave(
    target: Target, job: InterleaveJob, environment: Environment, progress: ProgressSink
) -> InterleavedRun:
    """All variants' blocks, in the order of `job.variants`."""
    with closing(_Interleaving(target, job, progress)) as running, no_garbage_collection():
        failure = running.run()
        return InterleavedRun(
            purpose=job.purpose,
            batch=job.engines[-1].batch,
            environment=environment,
            turns=tuple(runner.turns() for runner in running.runners),
            clocks=tuple(running.clocks),
            clock_reference=target.device.clock_sensor().reference,
            failure=failure,
            seed=job.seed,
            order=running.order,
            loadings=tuple(running.loadings),
        )


def is_reload_due(number: int, rounds: int, again_s: Sequence[float], turns_s: float) -> bool:
    """Whether to load all subjects again before round `number`, counted from 0.

    `MIN_LOADS` are needed, spread over the rounds; more as `RELOADING_SHARE` allows. `again_s` are the
    seconds that loading again has taken so far, each time.
    """
    if not number:
        return False
    if 1 + len(again_s) <= number * MIN_LOADS // rounds:
        return True
    return sum(again_s) + (fmean(again_s) if again_s else 0.0) <= RELOADING_SHARE * turns_s


def rounds_that_fit(job: InterleaveJob, round_s: float) -> int:
    """How many rounds a job has, if each takes so long."""
    allowed_s = _TURNS_SHARE * job.rounds * job.block_s * len(job.variants)
    fitting = int(allowed_s / round_s) if round_s else job.rounds
    return min(job.rounds, max(job.least_rounds or job.rounds, fitting))


class _Interleaving:
    """A job in progress: a runner of each variant, what all of them have in memory, and what was recorded."""

    def __init__(self, target: Target, job: InterleaveJob, progress: ProgressSink) -> None:
        self._target, self._job, self._progress = target, job, progress
        self._contents = [vouched_engine(target, engine) for engine in job.engines]
        self._inputs: dict[int, Inputs] = {}
        self._memory = ExitStack()
        self._random = np.random.RandomState(job.seed)
        self._sensor, self._began_s = target.device.clock_sensor(), target.device.now()
        self.runners = [InterleavedRunner(job, variant) for variant in job.variants]
        self.order = in_turns(len(self.runners), job.rounds, job.seed)
        self.clocks: list[ClockReading] = []
        self.loadings: list[Loading] = []

    def run(self) -> str | None:
        """Load, and take all turns; the clocks are read before the first and after each.

        Gives what broke it off.
        """
        now, count, turns_s = self._target.device.now, len(self.runners), 0.0
        rounds = self._job.rounds
        self._load(0)
        self.clocks.append(self.loadings[0].clock)
        for turn, index in enumerate(self.order):
            number, place = divmod(turn, count)
            if turn == count:
                rounds = rounds_that_fit(self._job, turns_s)
                self.order = self.order[: rounds * count]
            if number == rounds:
                break
            self._progress(f"turn {turn + 1} of {len(self.order)}", turn / len(self.order))
            try:
                if not place and self._job.reloads:
                    again_s = [one.took_s for one in self.loadings[1:]]
                    if is_reload_due(number, rounds, again_s, turns_s):
                        self._load(number)
                before_s = now()
                self.runners[index].take_turn(self._job.block_s)
                turns_s += now() - before_s
            except DeviceError as error:
                if turn < count:
                    raise
                return error.problem
            self.clocks.append(self._clock())
        return None

    def _clock(self) -> ClockReading:
        return self._sensor.read(round((self._target.device.now() - self._began_s) * 1e3, 3))

    def _load(self, number: int) -> None:
        """Close all, and load them in an order drawn at random; every second one is the reverse of the last.

        So none is always given the first memory.
        """
        device = self._target.device
        began_s = device.now()
        self.close()
        if len(self.loadings) % 2:
            order = self.loadings[-1].order[::-1]
        else:
            order = tuple(map(int, self._random.permutation(len(self.runners))))
        sessions: dict[int, Session] = {}
        for index in order:
            self._open(self.runners[index], sessions)
        for index, runner in enumerate(self.runners):
            if not number:
                self._progress("warming up", index / len(self.runners))
            runner.warm_up(Until(SWITCH_QUERIES, SWITCH_S) if number else WarmUp(min_s=self._job.warmup_s))
        took_s = round(device.now() - began_s, 6)
        if not number:
            self._began_s = device.now()
        self.loadings.append(Loading(round=number, order=order, took_s=took_s, clock=self._clock()))

    def _open(self, runner: InterleavedRunner, sessions: dict[int, Session]) -> None:
        """Give a runner its streams, on a session that all variants of its engine share."""
        number = runner.variant.engine
        engine = self._job.engines[number]
        if number not in sessions:
            sessions[number] = self._target.load(self._contents[number])
            self._memory.callback(sessions[number].close)
        session = sessions[number]
        if number not in self._inputs:
            self._inputs[number] = input_batch(session, engine, self._job.data)
        if not self.loadings:
            check_stream_memory(session, engine, runner.variant.contract)
        try:
            runner.open(session, self._inputs[number], self._memory.enter_context(ExitStack()))
        except DeviceMemoryError as error:
            raise DeviceMemoryError(
                f"{error.problem}; {len(self.runners)} subjects that take turns are in memory at once",
                f"{error.remedy}, or fewer --builds",
            ) from None

    def close(self) -> None:
        """Release all that is in memory."""
        self._memory.close()


class InterleavedRunner:
    """One variant; collects its blocks and warm-ups, over all of its loads."""

    def __init__(self, job: InterleaveJob, variant: Variant) -> None:
        self.variant = variant
        self._engine = job.engines[variant.engine]
        self._least = job.block_queries
        self._contract, self._as_run = variant.contract, partial(terms_of, variant.mode)
        self._inference_streams: list[InferenceStream] = []
        self._notes: list[str] = []
        self._blocks: list[Samples] = []
        self._warmups: list[Samples] = []

    def open(self, session: Session, data: Inputs, resources: ExitStack) -> None:
        """Take streams on a session, in place of those before."""
        engine = self._engine
        subject = Subject(session, engine.ref, engine.batch, engine.shapes, data)
        self._inference_streams, self._contract, notes = open_inference_streams(
            subject, self._contract, self._as_run, resources
        )
        self._notes = list(dict.fromkeys((*self._notes, *notes)))

    def warm_up(self, criterion: Criterion) -> None:
        """Run until the criterion is met; nothing of it counts."""
        self._warmups.append(sample(self._inference_streams, criterion))

    def take_turn(self, block_s: float) -> None:
        """Warm up after the switch, then one block."""
        self._warmups.append(self._take(SWITCH_QUERIES, SWITCH_S))
        self._blocks.append(self._take(self._least, block_s))

    def _take(self, min_queries: int, min_s: float) -> Samples:
        return sample(self._inference_streams, Until(min_queries, min_s))

    def turns(self) -> TurnSamples:
        """All that was taken."""
        return TurnSamples(
            name=self.variant.name,
            engine=self._engine.ref,
            contract=self._as_run(self._contract),
            mode=self.variant.mode,
            blocks=tuple(self._blocks),
            warmups=tuple(self._warmups),
            notes=tuple(self._notes),
        )


# ── what is kept of a run: the rounds that nothing spoilt ─────────────────────────────────────────────


@dataclass(frozen=True)
class ValidRounds:
    """The subjects' turns without spoilt rounds, and the number of the load that each round was taken in.

    `interfered` are reasons not to trust what is left. `orders` are those in which each load loaded the
    subjects, as indices of `turns`.
    """

    turns: tuple[TurnSamples, ...]
    loads: tuple[int, ...]
    interference: Interference
    failure: str | None = None
    orders: tuple[tuple[int, ...], ...] = ()

    @property
    def ms(self) -> dict[str, float]:
        """The median latency in milliseconds of each subject, by its name."""
        return {one.name: pooled_ms(one) for one in self.turns}

    @property
    def interfered(self) -> tuple[str, ...]:
        """What slowed the run down, if too much did."""
        return (self.interference.text,) if self.interference.untrustworthy else ()

    @property
    def failures(self) -> tuple[str, ...]:
        """What broke the run off: what is left is no comparison."""
        return _failures(self.failure)

    def is_reversed(self, second: int = 1) -> list[bool] | None:
        """Of each round, whether a subject was loaded before the first one; None where unknown."""
        if not self.orders:
            return None
        return [self.orders[load].index(second) < self.orders[load].index(0) for load in self.loads]


def _failures(problem: str | None) -> tuple[str, ...]:
    return () if problem is None else (f"the device failed in the middle: {problem}",)


def valid_rounds(run: InterleavedRun) -> ValidRounds:
    """Discard every round in which a turn was taken under a slowdown, from all subjects alike.

    So is a round that a failing device broke off: not every subject had its turn. Where no round is left all
    are kept, and the run is not to be trusted.
    """
    found = evaluate_groups(run.clocks, run.clock_reference.mhz)
    subjects = len(run.turns)
    spoilt = {turn // subjects for turn in found.discarded}
    complete = range(min(len(turns.blocks) for turns in run.turns))
    rounds = [number for number in complete if number not in spoilt] or complete
    kept = tuple(
        msgspec.structs.replace(turns, blocks=tuple(turns.blocks[number] for number in rounds))
        for turns in run.turns
    )
    starts = [one.round for one in run.loadings[1:]]
    loads = tuple(bisect_right(starts, number) for number in rounds)
    orders = tuple(one.order for one in run.loadings)
    return ValidRounds(kept, loads, found, run.failure, orders)


def ms_by_load(turns: TurnSamples, loads: Sequence[int]) -> list[float]:
    """The median of the blocks' median latencies in each load, in milliseconds."""
    return list(by_load([median(block) for block in latency_blocks(turns)], loads).values())


def pooled_ms(turns: TurnSamples) -> float:
    """The median latency of all blocks, in milliseconds."""
    return median(value for block in turns.blocks for value in block.latency_ms)


def latency_blocks(turns: TurnSamples) -> list[list[float]]:
    """Each block's latencies in milliseconds."""
    return [block.latency_ms for block in turns.blocks]


def notes_of(runs: Sequence[InterleavedRun]) -> list[str]:
    """The subjects' notes, how often they were loaded, and those on the clocks, once each."""
    notes = [note for run in runs for turns in run.turns for note in turns.notes]
    for run in runs:
        notes += [
            f"batch {run.batch}: {text}; what was measured until then is kept, and nothing came after"
            for text in _failures(run.failure)
        ]
        found = valid_rounds(run).interference
        if found.clocks_known and found.text:
            notes.append(found.text)
        elif not found.clocks_known:
            notes.append(f"clocks are unknown: {run.clock_reference.problem or 'not reported'}")
    if counts := [len(run.loadings) for run in runs if len(run.loadings) > 1]:
        times = str(min(counts)) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
        notes.append(f"loaded {times} times: the interval is over loads, for loads of one engine differ")
    return list(dict.fromkeys(notes))
