"""Subjects that take turns in one process: slow drift and a neighbour's noise fall on all of them alike.

Every subject keeps its context, buffers and graph for the whole run. A turn begins with queries that warm it
up after the switch (they are no samples), then takes one block of samples.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from trtopt.device.api import Device, ProgressSink, Session, Target
from trtopt.errors import DeviceError, DeviceMemoryError
from trtopt.measure.contracts import changed
from trtopt.measure.engine import check_fits, input_batch
from trtopt.measure.engine_memory import check_stream_memory, vouched_engine
from trtopt.measure.load.arrivals import Load, arrivals_s
from trtopt.measure.load.load_pass import bounds_of
from trtopt.measure.load.open_loop import OpenLoop
from trtopt.measure.loop.inference_stream import InferenceStream
from trtopt.measure.loop.run_pass import Subject, notes_on, open_inference_streams, terms_of
from trtopt.measure.loop.sampling import Criterion, Until, no_garbage_collection, sample
from trtopt.measure.loop.warmup import WarmUp
from trtopt.measure.statistics.comparison import in_turns
from trtopt.records import (
    ClockReading,
    Contract,
    EngineArtifact,
    EngineRef,
    Environment,
    InterleavedRun,
    Purpose,
    Record,
    Samples,
    Shape,
    TurnSamples,
)

_PROBE = 5
"""Queries from whose time the number that fills a block is estimated."""


def bare_latency(device: Device, inference_stream: InferenceStream, criterion: Criterion) -> Samples:
    """One query in flight, without events and bookkeeping: the clock before the launch, and after the wait.

    What the sampling loop adds to a query is its difference from this one.
    """
    launch, wait = inference_stream.bare()
    now = device.now
    began_s = now()
    starts, ends = [], []
    while not criterion.is_finished(now() - began_s):
        start_s = now()
        launch()
        wait()
        end_s = now()
        criterion.add((end_s - start_s) * 1e3)
        starts.append((start_s - began_s) * 1e3)
        ends.append((end_s - began_s) * 1e3)
    return _bare_samples(starts, ends)


def bare_throughput(
    device: Device, inference_streams: Sequence[InferenceStream], min_queries: int, block_s: float
) -> Samples:
    """Queries handed over one after the other for about `block_s`, and waited for once, at the end."""
    loops = [inference_stream.bare() for inference_stream in inference_streams]
    probe_s = _hand_over(device, loops, _PROBE)
    count = max(min_queries, round(block_s / probe_s * _PROBE) if probe_s else min_queries)
    took_ms = _hand_over(device, loops, count) * 1e3
    return _bare_samples([0.0] * count, [took_ms] * count)


def open_latency(
    device: Device, inference_streams: Sequence[InferenceStream], load: Load, window_s: float, seed: int
) -> Samples:
    """Requests of a load, from each one's arrival; one that was given up took until then at least."""
    arrivals = arrivals_s(load, window_s, seed)
    loop = OpenLoop(device, inference_streams, arrivals, bounds_of(window_s, len(arrivals)))
    with device.captured():
        loop.run()
    ended_ms = (device.now() - loop.began_s) * 1e3
    ends = {one.index: (one.query.end_s - loop.began_s) * 1e3 for one in loop.served}
    return _bare_samples(
        [arrival_s * 1e3 for arrival_s in arrivals[: loop.arrived]],
        [ends.get(index, ended_ms) for index in range(loop.arrived)],
    )


def _terms_of(variant: Variant) -> Contract:
    """In an open loop all slots of a stream take requests, and one host thread polls."""
    if variant.rate is None:
        return terms_of(variant.mode, variant.contract)
    return changed(variant.contract, {"sync": "spin", "threads": "one"})


def _hand_over(
    device: Device, loops: Sequence[tuple[Callable[[], None], Callable[[], None]]], count: int
) -> float:
    """Seconds for `count` queries, handed to the streams in turn."""
    launches = [loops[index % len(loops)][0] for index in range(count)]
    began_s = device.now()
    for launch in launches:
        launch()
    for _, wait in loops:
        wait()
    return device.now() - began_s


def _bare_samples(starts: list[float], ends: list[float]) -> Samples:
    return Samples(
        start_ms=[round(value, 6) for value in starts],
        end_ms=[round(value, 6) for value in ends],
        enqueue_ms=[],
        gpu_compute_ms=[],
        h2d_ms=[],
        d2h_ms=[],
        inference_stream=[],
    )


SWITCH_QUERIES = 3
SWITCH_S = 0.02
"""So much is run after a switch before samples count: until then caches are the other subject's."""

BLOCK_QUERIES = 5
"""A block holds no fewer, however slow the engine."""


class LoadedEngine(Record, frozen=True, kw_only=True):
    """An engine file that is loaded once; the same file twice gives two that share nothing."""

    path: str
    artifact: EngineArtifact
    shapes: dict[str, Shape]


class Variant(Record, frozen=True, kw_only=True):
    """One subject: which engine (an index), under which terms. `bare` runs it without the sampling loop.

    With a `rate` a block is an open loop: so many requests a second arrive, independent of one another, and
    the latency of each counts from its arrival.
    """

    name: str
    engine: int
    contract: Contract
    mode: Literal["latency", "throughput"] = "latency"
    bare: bool = False
    rate: float | None = None


class InterleaveJob(Record, frozen=True, kw_only=True, tag="interleave"):
    """A worker's job: load `engines`, run one block of each of `variants` in each of `rounds`.

    `data` is what `trtopt.data.open_data` takes; None gives seeded random input. A block has
    `block_queries` at least.
    """

    engines: tuple[LoadedEngine, ...]
    variants: tuple[Variant, ...]
    rounds: int
    purpose: Purpose
    batch: int
    data: str | None
    warmup_s: float
    block_s: float
    block_queries: int = BLOCK_QUERIES
    seed: int = msgspec.field(default_factory=partial(secrets.randbits, 32))
    """What the order of turns is drawn from; see `measure.comparison.in_turns`."""


def interleave(
    target: Target, job: InterleaveJob, environment: Environment, progress: ProgressSink
) -> InterleavedRun:
    """All variants' blocks, in the order of `job.variants`.

    Raises:
        IncompatibleEngineError, ArtifactError: an engine of another machine, or a file that was changed.
        DataError, DeviceError, UsageError: see `measure.loop`. A device that fails after the first round ends
            the run, which is then marked.
    """
    with ExitStack() as resources:
        sessions = [_load(target, engine, resources) for engine in job.engines]
        runners = [_make_runner(target, job, variant, sessions, resources) for variant in job.variants]
        with no_garbage_collection():
            for index, runner in enumerate(runners):
                progress("warming up", index / len(runners))
                runner.warm_up(job.warmup_s)
            order = in_turns(len(runners), job.rounds, job.seed)
            clocks, failure = _run_interleaved(target.device, runners, order, job.block_s, progress)
        return InterleavedRun(
            purpose=job.purpose,
            batch=job.batch,
            environment=environment,
            turns=tuple(runner.turns() for runner in runners),
            clocks=clocks,
            clock_reference=target.device.clock_sensor().reference,
            failure=failure,
            seed=job.seed,
            order=order,
        )


def _run_interleaved(
    device: Device,
    runners: Sequence[InterleavedRunner],
    order: Sequence[int],
    block_s: float,
    progress: ProgressSink,
) -> tuple[tuple[ClockReading, ...], str | None]:
    """All turns; the clocks are read before the first and after each. The second is what broke it off.

    Raises:
        DeviceError: the device failed before everybody had a turn.
    """
    sensor, began_s = device.clock_sensor(), device.now()
    clocks = [sensor.read(0.0)]
    for turn, index in enumerate(order):
        progress(f"turn {turn + 1} of {len(order)}", turn / len(order))
        try:
            runners[index].take_turn(block_s)
        except DeviceError as error:
            if turn < len(runners):
                raise
            return tuple(clocks), error.problem
        clocks.append(sensor.read(round((device.now() - began_s) * 1e3, 3)))
    return tuple(clocks), None


def _load(target: Target, engine: LoadedEngine, resources: ExitStack) -> Session:
    check_fits(engine.artifact, target)
    content = vouched_engine(target.device, Path(engine.path), engine.artifact, engine.shapes)
    session = target.load(content)
    resources.callback(session.close)
    return session


def _make_runner(
    target: Target, job: InterleaveJob, variant: Variant, sessions: Sequence[Session], resources: ExitStack
) -> InterleavedRunner:
    engine, session = job.engines[variant.engine], sessions[variant.engine]
    check_stream_memory(target.device, session, engine.artifact.path, engine.shapes, variant.contract)
    subject = Subject(
        engine=EngineRef(path=engine.path, sha256=engine.artifact.sha256, label=engine.artifact.plan.label),
        batch=job.batch,
        shapes=engine.shapes,
        data=input_batch(session, engine.shapes, job.data),
    )
    own = resources.enter_context(ExitStack())
    try:
        return InterleavedRunner(target.device, session, subject, variant, job, own)
    except DeviceMemoryError as error:
        raise DeviceMemoryError(
            f"{error.problem}; {len(job.variants)} subjects that take turns are in memory at once",
            "use a smaller batch, or fewer --builds",
        ) from None


class InterleavedRunner:
    """One variant with its streams open; collects its blocks and warm-ups."""

    def __init__(
        self,
        device: Device,
        session: Session,
        subject: Subject,
        variant: Variant,
        job: InterleaveJob,
        resources: ExitStack,
    ) -> None:
        self._device, self._subject, self._variant = device, subject, variant
        self._least, self._seed = job.block_queries, job.seed
        self._notes: list[str] = []
        self._terms = _terms_of(variant)
        self._inference_streams, refused = open_inference_streams(
            device, session, subject, self._terms, resources
        )
        if refused is not None:
            plain = changed(variant.contract, {"graph": False})
            self._terms = _terms_of(msgspec.structs.replace(variant, contract=plain))
            self._notes.append(f"measured without a CUDA graph: {refused}")
        self._notes += notes_on(device, self._inference_streams[0])
        self._blocks: list[Samples] = []
        self._warmups: list[Samples] = []

    def warm_up(self, min_s: float) -> None:
        """Warm up as a pass does."""
        self._warmups.append(sample(self._device, self._inference_streams, WarmUp(min_s=min_s)))

    def take_turn(self, block_s: float) -> None:
        """Warm up after the switch, then one block."""
        self._warmups.append(self._closed(SWITCH_QUERIES, SWITCH_S))
        self._blocks.append(self._block(self._least, block_s))

    def _block(self, min_queries: int, min_s: float) -> Samples:
        if self._variant.rate is None:
            return self._closed(min_queries, min_s)
        # each subject serves the same arrivals in a round
        seed = (self._seed + len(self._blocks)) % 2**32
        window = max(min_s, min_queries / self._variant.rate)
        load = Load(self._variant.rate, "poisson")
        return open_latency(self._device, self._inference_streams, load, window, seed)

    def _closed(self, min_queries: int, min_s: float) -> Samples:
        if not self._variant.bare:
            return sample(self._device, self._inference_streams, Until(min_queries, min_s))
        if self._variant.mode == "latency":
            return bare_latency(self._device, self._inference_streams[0], Until(min_queries, min_s))
        return bare_throughput(self._device, self._inference_streams, min_queries, min_s)

    def turns(self) -> TurnSamples:
        """All that was taken."""
        return TurnSamples(
            name=self._variant.name,
            engine=self._subject.engine,
            contract=self._terms,
            mode=self._variant.mode,
            bare=self._variant.bare,
            blocks=tuple(self._blocks),
            warmups=tuple(self._warmups),
            notes=tuple(self._notes),
        )
