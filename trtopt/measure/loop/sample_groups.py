"""The samples of one pass, taken in groups with a reading of the clocks before and after each.

Events with timestamps, which separate a query's stages, slow it down. Stages are therefore timed in queries
of their own, a tenth more after each group, and no sample is affected. With one query in flight a few are
then run by a bare loop, which shows what the sampling loop adds.

Readings are outside the timed region: the queue runs empty, the sensor is read, each buffer set runs one
query that does not count (the first after a pause), and sampling continues. Where the clocks are unknown and
queries queue there is no pause, and all samples are one group.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from trtopt.device.api import ClockSensor, Device, Session
from trtopt.errors import DeviceError, MeasurementError
from trtopt.measure.analysis.interference import evaluate_groups
from trtopt.measure.loop.inference_stream import InferenceStream
from trtopt.measure.loop.run_pass import Mode, Subject, open_inference_streams, terms_of
from trtopt.measure.loop.sampling import (
    Criterion,
    Finished,
    Until,
    as_samples,
    drive,
    loop_overhead,
    no_garbage_collection,
    run_bare,
)
from trtopt.measure.loop.stopping import Limits, StoppingRule, WarmUp
from trtopt.records import ClockReading, Contract, Measurement, Samples

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


def measure(
    device: Device, session: Session, subject: Subject, contract: Contract, mode: Mode, limits: Limits
) -> Measurement:
    """Warm up, then sample in groups until the limits are reached. No profiler or allocator may be attached.

    In latency mode one query is in flight; in throughput mode as many as the contract's queue and streams
    allow. All host work that is not the query's own is kept out of the loop. A discarded group's queries do
    not help the limits to be reached; its time counts towards the time limit. If the device fails in the
    middle, what had finished by then is kept.
    """
    in_mode = partial(terms_of, mode)
    with ExitStack() as resources:
        inference_streams, contract, notes = open_inference_streams(
            device, session, subject, contract, in_mode, resources
        )
        warm = WarmUp(min_s=limits.warmup_s, min_count=limits.min_warmups, max_s=limits.max_warmup_s)
        enough = StoppingRule(limits)
        with no_garbage_collection():
            sensor = device.clock_sensor()
            warmups = _Stretches(device.now())
            with device.annotate("warm-up"):
                drive(device, inference_streams, warm, warmups.new(0))
            with device.captured():
                taken = _take_groups(device, inference_streams, enough, warmups, sensor)
    clocks = taken.clocks if taken.clocks[0].sm_mhz is not None else []
    interference = evaluate_groups(clocks, sensor.reference.mhz)
    bad = {group.index for group in interference.groups if group.discarded}
    every = set(range(len(interference.groups))) if clocks else None
    kept = None if every is None else every - bad
    samples, discarded = taken.samples.of(kept), taken.samples.of(bad) if bad else None
    bare = taken.bare.of(kept) if len(taken.bare) else None
    if bare is not None and (added := loop_overhead(samples, bare)) is not None:
        notes += added.notes
    if not samples.start_ms and discarded is None:
        raise MeasurementError("no query finished", "give the pass more time with --duration")
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
        groups=tuple(group.reasons for group in interference.groups),
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
    device: Device,
    inference_streams: Sequence[InferenceStream],
    enough: StoppingRule,
    warmups: _Stretches,
    sensor: ClockSensor,
) -> _Taken:
    began_s = device.now()
    taken = _Taken(_Stretches(began_s), _Stretches(began_s), _Stretches(began_s), [sensor.read(0.0)])
    clocks = taken.clocks
    known = clocks[0].sm_mhz is not None
    is_alone = sum(len(inference_stream.slots) for inference_stream in inference_streams) == 1
    sampled_s = 0.0
    while True:
        index = len(clocks) - 1
        group = _Group(
            enough,
            sampled_s,
            GROUP_S if known or is_alone else math.inf,
            _queries_of_a_group(inference_streams),
        )
        try:
            if known or index:
                drive(device, inference_streams, Until(1), warmups.new(index))
            with device.annotate(f"group {index}"):
                before_s = device.now()
                drive(device, inference_streams, group, taken.samples.new(index))
                sampled_s += device.now() - before_s
            count = max(MIN_TIMED, round(group.heard * TIMED_SHARE))
            with device.annotate(f"stages {index}"):
                drive(device, inference_streams, Until(count), taken.staged.new(index), timed=True)
            if is_alone:
                least = Until(max(MIN_TIMED, round(group.heard * BARE_SHARE)))
                with device.annotate(f"bare loop {index}"):
                    run_bare(device, inference_streams[0], least, taken.bare.new(index))
        except DeviceError as error:
            if not len(taken.samples):
                raise
            taken.failure = error
        clocks.append(sensor.read(round((device.now() - began_s) * 1e3, 6)))
        if evaluate_groups(clocks[-2:], sensor.reference.mhz).discarded:
            enough.take_back(group.heard)
        if taken.failure is not None or enough.is_finished(sampled_s):
            return taken


def _queries_of_a_group(inference_streams: Sequence[InferenceStream]) -> int:
    slots = sum(len(inference_stream.slots) for inference_stream in inference_streams)
    return max(MIN_QUERIES, QUERIES_PER_WAITING_SLOT * (slots - 1))
