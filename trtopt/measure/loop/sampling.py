"""One pass: inference streams are kept busy until a criterion is met, and their queries are collected.

Samples are taken in groups. Events with timestamps, which separate a query's stages, slow it down: stages are
timed in queries of their own, a tenth more after each group, and no sample is affected. With one query in
flight a few are then run by a minimal loop around the library's calls, which shows what this loop adds.

The clocks are read outside the timed region: the queue runs empty, the sensor is read, each buffer set runs
one query that does not count (the first after a pause), and sampling continues. Where the clocks are unknown
and queries queue there is no pause, and all samples are one group.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle, groupby
from operator import itemgetter
from statistics import median
from typing import Literal, Protocol

import numpy as np

from trtopt.device.api import ClockSensor, Session
from trtopt.errors import DeviceError
from trtopt.measure.analysis.interference import evaluate_groups
from trtopt.measure.contracts import one_in_flight, with_terms
from trtopt.measure.loop.inference_stream import InferenceStream, Inputs, Query
from trtopt.measure.loop.stopping import Limits, StoppingRule
from trtopt.measure.statistics.intervals import percentile_interval
from trtopt.records import STAGES, ClockReading, Contract, EngineRef, Measurement, Samples, Shape

# ── what a pass runs on ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Subject:
    """What is measured: a loaded engine at one batch size, on this input data."""

    session: Session
    engine: EngineRef
    batch: int
    shapes: Mapping[str, Shape]
    data: Inputs


Mode = Literal["latency", "throughput"]


def terms_of(mode: Mode, contract: Contract) -> Contract:
    """The contract's terms in a mode."""
    return one_in_flight(contract) if mode == "latency" else contract


def _notes_on(inference_stream: InferenceStream) -> list[str]:
    """What the streams do otherwise than the contract's words would have it."""
    notes = []
    if sized := inference_stream.sized_outputs:
        shapes = ", ".join(f"{name} {list(output.shape)}" for name, output in sized.items())
        notes.append(f"outputs whose size depends on the data, here: {shapes}")
    if inference_stream.device.info.kind == "cpu" and inference_stream.contract.transfers:
        notes.append(
            "on the CPU the host thread itself copies and computes: a query's copies overlap nothing"
        )
    return notes


def open_inference_streams(
    subject: Subject,
    contract: Contract,
    as_run: Callable[[Contract], Contract],
    resources: ExitStack,
) -> tuple[list[InferenceStream], Contract, list[str]]:
    """One per stream, all without a CUDA graph if one refuses it; the contract that is kept, and notes.

    `as_run` gives a contract's terms in this pass; last, for `with_terms` would name them all.
    """
    inference_streams = _inference_streams(subject, as_run(contract), resources)
    refused = next((one.graph_refused for one in inference_streams if one.graph_refused), None)
    notes = []
    if refused is not None:
        resources.close()  # all streams run on the same terms, or the result has none
        contract = with_terms(contract, {"graph": False})
        inference_streams = _inference_streams(subject, as_run(contract), resources)
        notes.append(f"measured without a CUDA graph: {refused}")
    return inference_streams, contract, notes + _notes_on(inference_streams[0])


def _inference_streams(subject: Subject, terms: Contract, resources: ExitStack) -> list[InferenceStream]:
    inference_streams = []
    for _ in range(terms.streams):
        inference_streams.append(InferenceStream(subject.session, subject.shapes, subject.data, terms))
        resources.callback(inference_streams[-1].close)
    return inference_streams


# ── the sampling loop ─────────────────────────────────────────────────────────────────────────────────


Finished = tuple[int, Query]
"""A query and the number of the inference stream that ran it."""


class Criterion(Protocol):
    """Gets each query's latency in milliseconds and decides when a pass may end."""

    def add(self, latency_ms: float) -> None:
        """One more query has finished."""

    def is_finished(self, elapsed_s: float) -> bool:
        """Whether the pass may end; called once per query, `elapsed_s` after the first was enqueued."""


class Until:
    """Ends when both a count and a time are reached."""

    def __init__(self, min_count: int, min_s: float = 0.0) -> None:
        self._left, self._min_s = min_count, min_s

    def add(self, latency_ms: float) -> None:
        """One more query has finished."""
        self._left -= 1

    def is_finished(self, elapsed_s: float) -> bool:
        """See `Criterion`."""
        return self._left <= 0 and elapsed_s >= self._min_s


def sample(inference_streams: Sequence[InferenceStream], criterion: Criterion) -> Samples:
    """Keep every slot of every stream busy until the criterion is met, then let all of them finish."""
    began_s = inference_streams[0].device.now()
    finished: list[Finished] = []
    drive(inference_streams, criterion, finished)
    return as_samples(finished, began_s)


def drive(
    inference_streams: Sequence[InferenceStream],
    criterion: Criterion,
    finished: list[Finished],
    *,
    timed: bool = False,
) -> None:
    """As `sample`; `timed` queries have their stages timed, see `InFlightQuery.start`.

    One host thread serves all streams: under Python's interpreter lock threads of their own gain nothing
    (benchmarks/trust). The criterion is evaluated between queries: with one query in flight its work is never
    timed. Queries come into `finished` in the order in which they were enqueued; those that had finished when
    a query failed are there too.
    """
    turns = [
        (number, inference_stream.slots[slot])
        for slot in range(len(inference_streams[0].slots))
        for number, inference_stream in enumerate(inference_streams)
    ]
    if len(turns) == 1:
        _one_at_a_time(inference_streams[0], criterion, finished, timed)
        return
    now = inference_streams[0].device.now
    began_s = now()
    rounds = cycle(turns)
    while True:
        number, slot = next(rounds)
        if slot.busy:
            query = slot.finish()
            finished.append((number, query))
            criterion.add((query.end_s - query.start_s) * 1e3)
        if criterion.is_finished(now() - began_s):
            break
        slot.start(timed=timed)
    for _ in turns:
        number, slot = next(rounds)
        if slot.busy:
            finished.append((number, slot.finish()))


def _one_at_a_time(
    inference_stream: InferenceStream, criterion: Criterion, finished: list[Finished], timed: bool
) -> None:
    """Little code between queries, too: what it evicts from the caches the next query waits for."""
    run, now = inference_stream.slots[0].run, inference_stream.device.now
    began_s = now()
    while not criterion.is_finished(now() - began_s):
        query = run(timed=timed)
        finished.append((0, query))
        criterion.add((query.end_s - query.start_s) * 1e3)


def as_samples(finished: Sequence[Finished], began_s: float, group: Sequence[int] = ()) -> Samples:
    """Columns, rounded to the nanosecond: no clock here resolves more, and result files stay small."""
    queries = [query for _, query in finished]
    return Samples(
        start_ms=[round((query.start_s - began_s) * 1e3, 6) for query in queries],
        end_ms=[round((query.end_s - began_s) * 1e3, 6) for query in queries],
        **{
            column: [round(ms, 6) for query in queries if (ms := getattr(query, column)) is not None]
            for column in STAGES.values()
        },
        inference_stream=[inference_stream for inference_stream, _ in finished],
        group=list(group),
    )


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Python's collector must not run inside the timed region."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# ── a minimal loop beside it ──────────────────────────────────────────────────────────────────────────


def run_bare(inference_stream: InferenceStream, criterion: Criterion, finished: list[Finished]) -> None:
    """One query in flight: the clock before the launch, and after the wait."""
    calls, wait = inference_stream.bare()
    now = inference_stream.device.now
    began_s = now()
    while not criterion.is_finished(now() - began_s):
        start_s = now()
        for call in calls:
            call()
        wait()
        end_s = now()
        finished.append((0, Query(start_s, end_s)))
        criterion.add((end_s - start_s) * 1e3)


NOTABLE_SHARE = 0.01
"""Of the median latency."""


def overhead_notes(samples: Samples, bare: Samples) -> list[str]:
    """One if the loop adds more than a hundredth to a query for certain, that is at 95 %.

    Each group's bare queries are compared with as many samples right before them. Neighbours feel the same
    machine: their difference is the loop's, whatever else wanders.
    """
    ends, latency = np.asarray(samples.end_ms), np.asarray(samples.latency_ms)
    differences = []
    rows = zip(bare.group or [0] * len(bare.start_ms), bare.start_ms, bare.latency_ms, strict=True)
    for _, block in groupby(rows, key=itemgetter(0)):
        queries = list(block)
        last = int(np.searchsorted(ends, queries[0][1], side="right"))
        before = latency[max(0, last - len(queries)) : last]
        if len(before):
            differences.append(float(np.median(before)) - median(ms for _, _, ms in queries))
    if not differences:
        return []
    added, latency_ms = percentile_interval(differences, 50.0), float(np.median(latency))
    if added.low is None or added.low <= NOTABLE_SHARE * latency_ms:
        return []
    return [
        f"the loop adds {added.value * 1e3:.1f} µs ({added.value / latency_ms:.1%} of p50) to what a bare "
        "loop around the library's own call takes"
    ]


# ── a pass: samples in groups, with a reading of the clocks before and after each ─────────────────────


GROUP_S = 0.25
"""NVML updates about ten times a second: both readings of a group are of its own time. They cost a hundredth
of it."""

TIMED_SHARE = 0.1
MIN_TIMED = 5
"""So many queries more have their stages timed: a share of the group's, and no fewer."""

BARE_SHARE = 0.04
"""So many are run by a bare loop, and no fewer than `MIN_TIMED`."""

MIN_QUERIES = 20
"""The uncounted query before a group costs a twentieth at most."""

QUERIES_PER_WAITING_SLOT = 100
"""Filling and emptying the queue of a group moves its throughput by a hundredth at most."""


class _Group:
    """A criterion that ends with one group, or with the whole pass; it hears for both."""

    def __init__(self, whole: Criterion, before_s: float, seconds: float, queries: int) -> None:
        self._whole, self._before_s = whole, before_s
        self._seconds, self._queries = seconds, queries
        self.heard = 0

    def add(self, latency_ms: float) -> None:
        """One more query has finished."""
        self.heard += 1
        self._whole.add(latency_ms)

    def is_finished(self, elapsed_s: float) -> bool:
        """Whether the group may end; only time inside groups counts for the pass."""
        if self._whole.is_finished(self._before_s + elapsed_s):
            return True
        return elapsed_s >= self._seconds and self.heard >= self._queries


class _Stretches:
    """Stretches of queries, each of one group, on one clock that starts at `start_s` of the device's."""

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s
        self._stretches: list[tuple[int, list[Finished]]] = []

    def __len__(self) -> int:
        return sum(len(queries) for _, queries in self._stretches)

    def new(self, group: int) -> list[Finished]:
        """An empty stretch, to be filled."""
        self._stretches.append((group, []))
        return self._stretches[-1][1]

    def of(self, groups: Collection[int] | None) -> Samples:
        """The queries of these groups; None: of all. Where there is one group only, it needs no number."""
        chosen = [(group, queries) for group, queries in self._stretches if groups is None or group in groups]
        is_one = groups is None and len(self._stretches) == 1
        return as_samples(
            [query for _, queries in chosen for query in queries],
            self.start_s,
            [] if is_one else [group for group, queries in chosen for _ in queries],
        )


def measure(subject: Subject, contract: Contract, mode: Mode, limits: Limits) -> Measurement:
    """Warm up, then sample in groups until the limits are reached. No profiler or allocator may be attached.

    In latency mode one query is in flight; in throughput mode as many as the contract's queue and streams
    allow. All host work that is not the query's own is kept out of the loop. A discarded group's queries do
    not help the limits to be reached; its time counts towards the time limit. If the device fails in the
    middle, what had finished by then is kept.
    """
    in_mode, device = partial(terms_of, mode), subject.session.device
    with ExitStack() as resources:
        inference_streams, contract, notes = open_inference_streams(subject, contract, in_mode, resources)
        warm = limits.warm_up()
        enough = StoppingRule(limits)
        with no_garbage_collection():
            sensor = device.clock_sensor()
            warmups = _Stretches(device.now())
            with device.annotate("warm-up"):
                drive(inference_streams, warm, warmups.new(0))
            with device.captured():
                taken = _take_groups(inference_streams, enough, warmups, sensor)
    clocks = taken.clocks if taken.clocks[0].sm_mhz is not None else []
    interference = evaluate_groups(clocks, sensor.reference.mhz)
    bad = interference.discarded
    every = range(len(interference.groups)) if clocks else None
    kept = None if every is None else {*every} - {*bad}
    samples, discarded = taken.samples.of(kept), taken.samples.of(bad) if bad else None
    bare = taken.bare.of(kept) if len(taken.bare) else None
    if bare is not None:
        notes += overhead_notes(samples, bare)
    failure = None if taken.failure is None else taken.failure.problem
    against = [] if failure is None else [f"the device failed in the middle: {failure}"]
    return Measurement(
        mode=mode,
        contract=in_mode(contract),
        engine=subject.engine,
        batch=subject.batch,
        shapes=dict(subject.shapes),
        samples=samples,
        staged=taken.staged.of(kept),
        bare=bare,
        warmups=warmups.of(every),
        clocks=tuple(clocks),
        clock_reference=sensor.reference,
        groups=interference.groups,
        discarded=0 if discarded is None else len(discarded.start_ms),
        discarded_samples=discarded,
        untrustworthy=(*against, *([interference.text] if interference.untrustworthy else [])),
        warmup_reason=warm.reason,
        stop_reason=enough.reason if failure is None else f"failure: {failure}",
        failure=failure,
        notes=tuple(notes),
    )


@dataclass
class _Taken:
    """A pass so far: its samples, queries whose stages were timed, and those of a bare loop, if none queue.

    `clocks` has one reading more than there are groups.
    """

    samples: _Stretches
    staged: _Stretches
    bare: _Stretches
    clocks: list[ClockReading]
    failure: DeviceError | None = None


def _take_groups(
    inference_streams: Sequence[InferenceStream],
    enough: StoppingRule,
    warmups: _Stretches,
    sensor: ClockSensor,
) -> _Taken:
    device = inference_streams[0].device
    began_s = device.now()
    taken = _Taken(_Stretches(began_s), _Stretches(began_s), _Stretches(began_s), [sensor.read(0.0)])
    clocks = taken.clocks
    known = clocks[0].sm_mhz is not None
    slots = sum(len(inference_stream.slots) for inference_stream in inference_streams)
    is_alone = slots == 1
    seconds = GROUP_S if known or is_alone else math.inf
    queries = max(MIN_QUERIES, QUERIES_PER_WAITING_SLOT * (slots - 1))
    sampled_s = 0.0
    while True:
        index = len(clocks) - 1
        group = _Group(enough, sampled_s, seconds, queries)
        try:
            if known or index:
                drive(inference_streams, Until(1), warmups.new(index))
            with device.annotate(f"group {index}"):
                before_s = device.now()
                drive(inference_streams, group, taken.samples.new(index))
                sampled_s += device.now() - before_s
            count = max(MIN_TIMED, round(group.heard * TIMED_SHARE))
            with device.annotate(f"stages {index}"):
                drive(inference_streams, Until(count), taken.staged.new(index), timed=True)
            if is_alone:
                least = Until(max(MIN_TIMED, round(group.heard * BARE_SHARE)))
                with device.annotate(f"bare loop {index}"):
                    run_bare(inference_streams[0], least, taken.bare.new(index))
        except DeviceError as error:
            if not len(taken.samples):
                raise
            taken.failure = error
        clocks.append(sensor.read(round((device.now() - began_s) * 1e3, 6)))
        if evaluate_groups(clocks[-2:], sensor.reference.mhz).discarded:
            enough.take_back(group.heard)
        if taken.failure is not None or enough.is_finished(sampled_s):
            return taken
