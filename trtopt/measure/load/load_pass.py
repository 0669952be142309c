"""Latency while requests arrive on a plan of their own, and the highest rate at which it keeps a limit."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from trtopt.device.api import ClockSensor, ProgressSink
from trtopt.errors import DeviceError, MeasurementError
from trtopt.measure.analysis.interference import evaluate_groups
from trtopt.measure.contracts import with_terms
from trtopt.measure.load.arrivals import (
    Goal,
    Load,
    RateSearch,
    achieved_rate,
    arrivals_s,
    keeps_up,
    may_be_late,
    parse_goal,
    parse_load,
    probe_s,
    window_s,
)
from trtopt.measure.loop.inference_stream import InferenceStream, InFlightQuery, Query
from trtopt.measure.loop.sampling import (
    Subject,
    as_samples,
    drive,
    no_garbage_collection,
    open_inference_streams,
)
from trtopt.measure.loop.stopping import Limits
from trtopt.measure.statistics.intervals import percentile_interval
from trtopt.measure.statistics.summaries import percentile, throughput
from trtopt.records import Contract, LoadPass, LoadSearch, Measurement, RateProbe, Record

SEED = 0
_MAX_DRAIN_S = 10.0


class LoadSettings(Record, frozen=True, kw_only=True):
    """Requests at `rate` a second; or the highest rate that keeps `goal`, beginning with `rate` if given."""

    arrivals: Literal["constant", "poisson"]
    rate: float | None = None
    goal: Goal | None = None


def load_settings(load: str | None, max_latency: str | None) -> LoadSettings | None:
    """The load by `--load` and `--max-latency`; None if there is neither.

    `--max-latency` finds the rate itself. With it `--load` may be just the kind of arrivals, or be omitted:
    requests of independent users arrive as a Poisson process.
    """
    goal = None if max_latency is None else parse_goal(max_latency)
    if goal is not None and load in (None, "poisson"):
        return LoadSettings(arrivals="poisson", goal=goal)
    if goal is not None and load == "constant":
        return LoadSettings(arrivals="constant", goal=goal)
    if load is None:
        return None
    plan = parse_load(load)
    return LoadSettings(arrivals=plan.kind, rate=plan.rate, goal=goal)


def measure_load(subject: Subject, contract: Contract, load: Load, limits: Limits) -> LoadPass:
    """Let requests arrive for `limits.duration_s` after a closed-loop warm-up, and serve them all.

    One request is one query of the engine. If the device fails after some have been served, those are
    returned, marked with the failure.
    """
    run: LoadPass | None = None
    try:
        with warm_streams(subject, contract, limits) as streams:
            run = streams.serve(load, SEED, limits.duration_s)
    except DeviceError as error:
        if run is None:
            raise
        run = msgspec.structs.replace(run, failure=run.failure or error.problem)  # closing it failed, too
    return run


def bounds_of(seconds: float, requests: int, goal: Goal | None = None) -> Bounds:
    """For how long to wait for so many requests that arrive within `seconds`.

    As long again, but from one to ten seconds; and long enough to see whether a goal's limit is exceeded.
    """
    bounds = Bounds(seconds, drain_s=min(max(1.0, seconds), _MAX_DRAIN_S))
    if goal is None:
        return bounds
    drain_s = max(bounds.drain_s, goal.limit_ms / 1e3)
    max_late = may_be_late(goal, requests)
    return replace(bounds, drain_s=drain_s, late_ms=goal.limit_ms, max_late=max_late)


@dataclass(frozen=True)
class WarmStreams:
    """Inference streams that have warmed up, on the terms that they run on."""

    inference_streams: Sequence[InferenceStream]
    sensor: ClockSensor
    contract: Contract
    warmup_reason: str
    notes: tuple[str, ...]

    def serve(self, load: Load, seed: int, wanted_s: float, goal: Goal | None = None) -> LoadPass:
        """One run from an empty queue; with a goal it ends as soon as that is missed for certain."""
        window = window_s(load, wanted_s)
        arrivals = arrivals_s(load, window, seed)
        bounds = bounds_of(window, len(arrivals), goal)
        device = self.inference_streams[0].device
        loop, failure = OpenLoop(self.inference_streams, arrivals, bounds), None
        before = self.sensor.read(0.0)
        try:
            with device.captured():
                loop.run()
        except DeviceError as error:
            if not loop.served:
                raise
            failure = error.problem
        clocks = (before, self.sensor.read(round((device.now() - loop.began_s) * 1e3, 6)))
        slowed = evaluate_groups(clocks, self.sensor.reference.mhz).groups[0]
        served = sorted(loop.served, key=lambda one: one.index)
        return LoadPass(
            arrivals=load.kind,
            rate=load.rate,
            seed=seed,
            contract=self.contract,
            window_s=loop.window_s,
            arrived=loop.arrived,
            most_waiting=loop.most_waiting,
            samples=as_samples([(one.inference_stream, one.query) for one in served], loop.began_s),
            arrival_ms=[round((one.arrival_s - loop.began_s) * 1e3, 6) for one in served],
            lag_ms=[round(one.lag_s * 1e3, 6) for one in served],
            clocks=clocks if before.sm_mhz is not None else (),
            clock_reference=self.sensor.reference,
            untrustworthy=(f"the device was slowed: {', '.join(slowed)}",) if slowed else (),
            warmup_reason=self.warmup_reason,
            stop_reason=loop.ended_by or "the device failed",
            failure=failure,
            notes=self.notes,
        )


def with_polling(contract: Contract) -> Contract:
    """The host polls, whatever the contract's `sync`: waiting for one event it would miss arrivals."""
    return with_terms(contract, {"sync": "spin"})


@contextmanager
def warm_streams(subject: Subject, contract: Contract, limits: Limits) -> Iterator[WarmStreams]:
    """Inference streams of the contract, warmed up in a closed loop."""
    with ExitStack() as resources:
        inference_streams, contract, notes = open_inference_streams(
            subject, contract, with_polling, resources
        )
        warm = limits.warm_up()
        with no_garbage_collection():
            drive(inference_streams, warm, [])
            yield WarmStreams(
                inference_streams,
                subject.session.device.clock_sensor(),
                with_polling(contract),
                warm.reason,
                tuple(notes),
            )


# ── the highest rate at which streams keep a latency ──────────────────────────────────────────────────


def search_load(
    subject: Subject,
    contract: Contract,
    settings: LoadSettings,
    closed_loop: tuple[Measurement, Measurement],
    limits: Limits,
    progress: ProgressSink,
) -> LoadSearch:
    """Find the highest rate that keeps the settings' goal, and measure it once more with other arrivals.

    `closed_loop` are the latency and the throughput pass: a latency that one query in flight does not keep is
    out of reach, and half of the throughput is the first rate to try, unless the settings name one. If the
    device fails after a probe, the probes are returned, marked with the failure.

    Every probe has the same seed, so that two rates are compared on the same arrivals, scaled. Of several
    probes the search takes the luckiest, so the last run, of the highest rate that kept the goal, has another
    seed.
    """
    goal, (latency, most) = settings.goal, closed_loop
    assert goal is not None
    if not latency.samples.start_ms or not most.samples.start_ms:
        why = "; ".join(latency.untrustworthy or most.untrustworthy)
        raise MeasurementError(
            f"--max-latency: no rate to start from: {why}", "find out what slows the device"
        )
    rates = RateSearch(settings.rate or throughput(most.samples, subject.batch).queries_per_s / 2)
    probes, last, failure = list[RateProbe](), None, None
    unloaded = percentile(latency.samples.latency_ms, goal.p)
    if unloaded is not None and unloaded > goal.limit_ms:
        reason = f"{goal} is out of reach: p{goal.p:g} is {unloaded:.3f} ms with one query at a time"
    else:
        try:
            with warm_streams(subject, contract, limits) as streams:
                contract, run = streams.contract, None
                while (rate := rates.next_rate) is not None:
                    progress(f"load {rate:,.4g}/s", None)
                    seconds = probe_s(goal, rate, limits.duration_s)
                    run = streams.serve(Load(rate, settings.arrivals), SEED, seconds, goal)
                    probes.append(_probe(run, goal))
                    rates.add(probes[-1].kept)
                    if run.failure is not None:
                        break
                else:
                    run = None
                    if (best := rates.best) is not None:
                        progress(f"load {best:,.4g}/s once more", None)
                        seconds = probe_s(goal, best, limits.duration_s)
                        run = streams.serve(Load(best, settings.arrivals), SEED + 1, seconds)
                last = run
        except DeviceError as error:
            if not probes:
                raise
            failure = error.problem
        reason = rates.reason(goal)
    if failure is None and last is not None:
        failure = last.failure
    return LoadSearch(
        goal=str(goal),
        arrivals=settings.arrivals,
        seed=SEED,
        contract=contract,
        probes=tuple(probes),
        rate=rates.best,
        again=_probe(last, goal) if last is not None and failure is None else None,
        last=last,
        reason=reason if failure is None else f"not ended: {failure}",
        failure=failure,
    )


def _probe(run: LoadPass, goal: Goal) -> RateProbe:
    latencies = run.latency_ms
    value = percentile(latencies, goal.p)
    interval = percentile_interval(latencies, goal.p) if value is not None else None
    return RateProbe(
        rate=run.rate,
        requests=len(latencies),
        latency_ms=value,
        low_ms=interval.low if interval is not None else None,
        high_ms=interval.high if interval is not None else None,
        achieved_rate=achieved_rate(run),
        kept=value is not None and value <= goal.limit_ms and keeps_up(run),
        untrustworthy=run.untrustworthy,
    )


# ── the open loop ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Bounds:
    """What ends a run before all of its requests have been served, so that an overload stays bounded.

    Requests arrive for `window_s`; those still waiting `drain_s` later are given up. The
    run also ends once more than `max_late` have taken longer than `late_ms`.
    """

    window_s: float
    drain_s: float
    late_ms: float = math.inf
    max_late: int = 0


@dataclass(frozen=True)
class ServedRequest:
    """One request that has been served, by its index among the arrivals; `ready_s` as in `_Flight`."""

    index: int
    arrival_s: float
    ready_s: float
    inference_stream: int
    query: Query

    @property
    def lag_s(self) -> float:
        """How late the host handed it over although nothing was in the way."""
        return self.query.start_s - max(self.arrival_s, self.ready_s)


@dataclass(frozen=True)
class _Flight:
    """A request that has been handed over; the host was busy, or every slot was, until `ready_s`."""

    index: int
    slot: InFlightQuery
    ready_s: float


class OpenLoop:
    """Serves requests that arrive at the times `arrivals_s` after `run` is called; they wait if they must.

    One host thread does all: it sees arrivals become due, hands the oldest waiting request to a free slot of
    the least busy stream, and polls the device for what has finished. It never waits for a query while it
    could hand over another one. What has been served so far is there whatever becomes of the device.
    """

    def __init__(
        self,
        inference_streams: Sequence[InferenceStream],
        arrivals_s: Sequence[float],
        bounds: Bounds,
    ):
        self._device, self._inference_streams = inference_streams[0].device, inference_streams
        self._arrivals, self._bounds = arrivals_s, bounds
        self._flying: list[deque[_Flight]] = [deque() for _ in inference_streams]
        self._taken = self._late = 0
        self._ready_s = self._admitted_s = math.nan
        self.began_s = math.nan
        self.arrived = 0
        self.most_waiting = 0
        self.served: list[ServedRequest] = []
        self.ended_by = ""

    def run(self) -> None:
        """Serve them all, or until a bound is met; then what is in flight finishes."""
        self.began_s = self._ready_s = self._device.now()
        while True:
            self._collect()
            if not self.ended_by:
                self._admit()
                self.ended_by = self._evaluate()
            if self.ended_by and not any(self._flying):
                return
            inference_stream = self._free_stream()
            if inference_stream is not None and not self.ended_by and self._taken < self.arrived:
                self._hand_over(inference_stream)
            else:
                heads = [flying[0].slot.completion for flying in self._flying if flying]
                self._device.wait_any(heads, self._wake_s())

    @property
    def window_s(self) -> float:
        """For how long requests were let in."""
        return self._bounds.window_s if self.arrived == len(self._arrivals) else self._admitted_s

    def _admit(self) -> None:
        now, arrivals = self._device.now(), self._arrivals
        self._admitted_s = now - self.began_s
        while self.arrived < len(arrivals) and self.began_s + arrivals[self.arrived] <= now:
            self.arrived += 1
        free = sum(len(inference_stream.slots) for inference_stream in self._inference_streams) - sum(
            map(len, self._flying)
        )
        self.most_waiting = max(self.most_waiting, self.arrived - self._taken - free)

    def _collect(self) -> None:
        """Work of one stream finishes in the order in which it was handed over."""
        for number, flying in enumerate(self._flying):
            while flying and flying[0].slot.completion.reached():
                flight = flying.popleft()
                arrival_s = self.began_s + self._arrivals[flight.index]
                query = flight.slot.finish()
                self.served.append(ServedRequest(flight.index, arrival_s, flight.ready_s, number, query))
                self._late += (query.end_s - arrival_s) * 1e3 > self._bounds.late_ms
                self._ready_s = self._device.now()

    def _evaluate(self) -> str:
        """Why the run ends now; empty if it continues."""
        bounds = self._bounds
        if self._taken == len(self._arrivals):
            return "all requests were served"
        if self._device.now() >= self.began_s + bounds.window_s + bounds.drain_s:
            return f"requests were still waiting {bounds.drain_s:g} s after the arrivals' end"
        if self._late > bounds.max_late:
            return f"{self._late} requests took longer than {bounds.late_ms:g} ms: the goal is missed"
        return ""

    def _free_stream(self) -> int | None:
        """An idle stream before one with a queue: a request must not wait behind another without need."""
        free = [
            index
            for index, inference_stream in enumerate(self._inference_streams)
            if len(self._flying[index]) < len(inference_stream.slots)
        ]
        return min(free, key=lambda index: len(self._flying[index]), default=None)

    def _hand_over(self, inference_stream: int) -> None:
        slot = next(slot for slot in self._inference_streams[inference_stream].slots if not slot.busy)
        self._flying[inference_stream].append(_Flight(self._taken, slot, self._ready_s))
        slot.start()
        self._taken += 1
        self._ready_s = self._device.now()

    def _wake_s(self) -> float:
        """The next arrival, or the time at which waiting requests are given up."""
        if self.ended_by:
            return math.inf
        if self.arrived < len(self._arrivals):
            return self.began_s + self._arrivals[self.arrived]
        return self.began_s + self._bounds.window_s + self._bounds.drain_s
