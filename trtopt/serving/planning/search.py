"""What a setup does under a load, which setup to choose, and what each bound costs. Pure, and seeded.

Setups are eliminated in stages: first without simulation, then by simulations of growing length, which keep
the best of every number of engines. The last ones are predicted with intervals.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from msgspec import structs
from numpy.random import RandomState
from numpy.typing import NDArray

from trtopt.errors import PlanError
from trtopt.measure.load.arrivals import Goal, RateSearch
from trtopt.measure.statistics.intervals import student
from trtopt.measure.statistics.summaries import needed_for
from trtopt.records import BatchPolicy, Estimate, Prediction
from trtopt.serving.planning.setups import (
    DELAYS,
    NO_COST,
    Costs,
    Fleet,
    MeasuredEngine,
    Setup,
    at_level,
    fleets,
    worker_counts,
)
from trtopt.serving.planning.simulation import (
    Arrivals,
    Process,
    Recorded,
    Simulated,
    arrivals_at,
    lengths_of,
    simulate,
)

RUNS = 10
_MOST_REQUESTS, _SECONDS, _FOLD = 10_000, 30.0, 5


@dataclass(frozen=True)
class Demand:
    """Requests at `rate` a second; `shares` of them by length, unless recorded arrivals have lengths."""

    process: Process
    rate: float
    shares: Mapping[int, float]

    @property
    def by_length(self) -> dict[int, float]:
        """The share of each length, all together 1."""
        if isinstance(self.process, Recorded) and self.process.lengths:
            lengths, counts = np.unique(self.process.lengths, return_counts=True)
            return dict(zip(lengths.tolist(), (counts / counts.sum()).tolist(), strict=True))
        total = sum(self.shares.values())
        return {length: share / total for length, share in sorted(self.shares.items())}

    def at(self, rate: float) -> Demand:
        """The same at another rate."""
        return replace(self, rate=rate)

    def shares_of(self, fleet: Fleet) -> list[float] | None:
        """Which share of the requests each of the fleet's lengths gets; None if one is longer than all."""
        shares = [0.0] * len(fleet.lengths)
        for length, share in self.by_length.items():
            bucket = fleet.bucket(length)
            if bucket is None:
                return None
            shares[bucket] += share
        return shares

    def arrivals(self, fleet: Fleet, requests: int, seed: int) -> Arrivals:
        """About so many requests, each with the bucket that it goes to."""
        at_s = arrivals_at(self.process, self.rate, requests, seed)
        lengths = lengths_of(self.process, self.shares, len(at_s), seed)
        return Arrivals(at_s, np.searchsorted(np.asarray(fleet.lengths), lengths))


def requests_of(goal: Goal, rate: float) -> int:
    """How many requests make a run: what half a minute brings, 10,000 at most, enough for the percentile."""
    return max(_FOLD * needed_for(goal.p), min(_MOST_REQUESTS, math.ceil(rate * _SECONDS)))


def run_once(setup: Setup, demand: Demand, requests: int, seed: int) -> Simulated:
    """One run on the curves as they were measured."""
    arrivals = demand.arrivals(setup.fleet, requests, seed)
    return simulate(setup.fleet.services, setup.workers, setup.policy, arrivals, seed, setup.cost)


def percentile(values: Sequence[float] | NDArray[np.float64], p: float) -> float:
    """As `measure.statistics.percentile`, which infinite values would turn into NaN."""
    if np.isfinite(values).all():
        return float(np.percentile(values, p))
    return float(np.percentile(values, p, method="higher"))


def predict(setup: Setup, demand: Demand, goal: Goal, runs: int = RUNS) -> Prediction:
    """Simulate runs, each with arrivals of its own and curves resampled from the measured samples.

    The intervals (`estimate`) cover the scatter of runs and the uncertainty of the curves, not how processes
    differ, nor how a machine changes from day to day.
    """
    requests = requests_of(goal, demand.rate)
    figures: list[list[float]] = []
    pooled: list[NDArray[np.float64]] = []
    percentiles = (50.0, 99.0, goal.p)
    busy = batches = served = 0.0
    for seed in range(1, runs + 1):
        random = RandomState(seed)
        engines = [engine.resampled(random) for engine in setup.fleet.engines]
        arrivals = demand.arrivals(setup.fleet, requests, seed)
        services = setup.fleet.drawing(engines)
        run = simulate(services, setup.workers, setup.policy, arrivals, seed, setup.cost)
        every = run.latencies_ms
        pooled.append(every)
        figures.append([*(percentile(every, p) for p in percentiles), run.throughput])
        busy += run.busy_s * run.throughput / run.served.sum() / setup.workers / runs
        batches += run.batch.max() + 1
        served += run.served.sum()
    *latencies, throughputs = zip(*figures, strict=True)
    p50, p99, aimed = (
        estimate(values, percentile(np.concatenate(pooled), p))
        for p, values in zip(percentiles, latencies, strict=True)
    )
    return Prediction(
        requests=requests,
        p50=p50,
        p99=p99,
        goal=aimed,
        throughput=estimate(throughputs),
        mean_batch=float(served / batches),
        busy=float(busy),
    )


def estimate(values: Sequence[float], pooled: float | None = None) -> Estimate:
    """The mean of simulated runs, and the interval that about 95 of 100 more runs fall into.

    `pooled` is the figure of all runs' requests together, if that is known: where slow spells are rare most
    runs have none, and the mean of their percentiles is too low. The half width is t · s · √(1 + 1/runs).
    """
    if not np.isfinite(values).all():
        return Estimate(value=math.inf, low=min(values), high=math.inf)
    mean, runs = float(np.mean(values)) if pooled is None else pooled, len(values)
    half = student(runs - 1) * float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / runs)
    return Estimate(value=mean, low=max(0.0, mean - half), high=mean + half)


_SIEVE = ((6, 1_000), (2, 3_000), (1, 8_000))
"""How many of each number of engines are left after simulations of how many requests."""

_SIMULATED = 24
"""Of each number of engines, and with every delay."""

_RATE_STEP = 0.05
"""How closely a rate is looked for."""

_AS_GOOD = 1.05
"""Who is slower by less gives way to no more complicated setup."""

MAX_ENGINES = 4
"""So many of three precisions at eight batch sizes are 12,950 sets, which take minutes to look through."""


@dataclass(frozen=True)
class Bounds:
    """What a plan must keep. `for_triton`: engines of one length, of which one engine can be made."""

    goal: Goal
    memory_bytes: int | None = None
    max_engines: int = 3
    for_triton: bool = False


@dataclass(frozen=True)
class Outcome:
    """A setup with what it is predicted to do."""

    setup: Setup
    prediction: Prediction

    def keeps(self, goal: Goal) -> bool:
        """For certain: the whole interval does, and no more than 1 % of the requests are rejected."""
        return self.prediction.goal.high <= goal.limit_ms and math.isfinite(self.prediction.p99.value)


@dataclass(frozen=True)
class SearchResult:
    """The chosen setup, None if nothing keeps the bounds; and the one closest to the goal."""

    chosen: Outcome | None
    closest: Outcome | None


class Search:
    """Searches among measured engines; what is costly to know of a set of engines is found out once."""

    def __init__(self, engines: Sequence[MeasuredEngine], costs: Costs = NO_COST) -> None:
        self._costs = costs
        self._fleets = cache(lambda most: list(fleets(engines, most)))
        self.most_engines = min(MAX_ENGINES, len(engines))
        self.knows_memory = any(engine.memory is not None for engine in engines)

    def best(self, demand: Demand, bounds: Bounds) -> SearchResult:
        """The setup with the lowest latency that keeps the bounds, or a simpler one that is as good.

        Simpler is: fewer engines, fewer workers, less memory. As good: its latency is within the best's
        interval, or within 5 %.
        """
        left = self._worth_simulating(demand, bounds)
        for keep, requests in _SIEVE:
            left = _sieve(left, demand, bounds.goal, keep, requests)
        finalists = sorted(
            (Outcome(setup, predict(setup, demand, bounds.goal)) for setup in left),
            key=lambda one: one.prediction.goal.value,
        )
        chosen = simplest([one for one in finalists if one.keeps(bounds.goal)])
        return SearchResult(chosen, finalists[0] if finalists else None)

    def highest_rate(
        self, demand: Demand, bounds: Bounds, failed: float = math.inf
    ) -> tuple[float, SearchResult] | None:
        """The highest rate at which a setup keeps the bounds for certain, within 5 %; None: there is none.

        It is below one at which none does: what the search doubles to first.
        """
        within = self._within(demand, bounds)
        capacities = (
            setup.capacity(shares) for setup, shares in within if setup.fleet.least_ms <= bounds.goal.limit_ms
        )
        capacity = max(capacities, default=0.0)
        if not capacity:
            return None
        beyond = min(capacity, failed)
        search, choices = RateSearch(beyond / 2, resolution=_RATE_STEP), {}
        while (rate := search.next_rate) is not None:
            choices[rate] = self.best(demand.at(rate), bounds)
            search.add(choices[rate].chosen is not None)
        return (search.best, choices[search.best]) if search.best is not None else None

    # ── before any simulation ───────────────────────────────────────────────────────────────────────────

    def _within(self, demand: Demand, bounds: Bounds) -> Iterator[tuple[Setup, list[float]]]:
        """What there is within the bounds on engines and memory, without a delay; and shares by length."""
        for fleet in self._fleets(bounds.max_engines):
            shares = demand.shares_of(fleet)
            if shares is None or (bounds.for_triton and len(fleet.lengths) > 1):
                continue
            for max_batch in fleet.largest_batches():
                if not all(fleet.batches_used(max_batch)):
                    continue
                for workers in worker_counts(fleet):
                    policy = BatchPolicy(max_batch=max_batch, max_delay_ms=0.0)
                    setup = Setup(fleet, workers, policy, at_level(self._costs, workers))
                    if bounds.memory_bytes is not None:
                        takes = setup.memory_bytes()
                        if takes is None or takes > bounds.memory_bytes:  # what was not measured keeps none
                            continue
                    yield setup, shares

    def _worth_simulating(self, demand: Demand, bounds: Bounds) -> list[Setup]:
        """The most promising of each number of engines, with every delay."""
        promising: dict[int, list[tuple[float, Setup]]] = defaultdict(list)
        for setup, shares in self._within(demand, bounds):
            if setup.capacity(shares) > demand.rate:
                rough_ms = setup.expected_ms(demand.rate, shares)
                promising[len(setup.fleet.engines)].append((rough_ms, setup))
        return [
            replace(setup, policy=structs.replace(setup.policy, max_delay_ms=share * bounds.goal.limit_ms))
            for rough in promising.values()
            for _, setup in sorted(rough, key=lambda one: one[0])[:_SIMULATED]
            for share in DELAYS
        ]


def _sieve(setups: Sequence[Setup], demand: Demand, goal: Goal, keep: int, requests: int) -> list[Setup]:
    """The fastest of each number of engines, fastest first; all of them meet the same requests."""
    enough = max(requests, requests_of(goal, 0.0))

    def latency_ms(setup: Setup) -> float:
        return percentile(run_once(setup, demand, enough, seed=0).latencies_ms, goal.p)

    kept: list[Setup] = []
    counts: dict[int, int] = defaultdict(int)
    for setup in sorted(setups, key=latency_ms):
        counts[len(setup.fleet.engines)] += 1
        if counts[len(setup.fleet.engines)] <= keep:
            kept.append(setup)
    return kept


def simplest(keeping: Sequence[Outcome]) -> Outcome | None:
    """Of those that are as good as the first, which is the fastest."""
    if not keeping:
        return None
    best = keeping[0].prediction.goal
    as_good = [one for one in keeping if one.prediction.goal.value <= max(best.high, _AS_GOOD * best.value)]
    return min(as_good, key=_complexity)


def _complexity(one: Outcome) -> tuple[int, int, int, float]:
    memory = one.setup.memory_bytes() or 0
    return len(one.setup.fleet.engines), one.setup.workers, memory, one.prediction.goal.value


# ── when nothing keeps the bounds ───────────────────────────────────────────────────────────────────────


def nothing_keeps(
    search: Search, demand: Demand, bounds: Bounds, found: SearchResult, rate_given: bool
) -> PlanError:
    """The error with the cost of each bound: the best setup without it, the others being kept."""
    lines = [f"{bounds.goal}: {_at_best(found)}"]
    if rate_given:
        highest = search.highest_rate(demand, bounds, demand.rate)
        kept = "no rate keeps"
        if highest is not None:
            most = highest[0]
            kept = f"up to {most:,.0f}/s keep" if most >= 100 else f"up to {most:.3g}/s keep"
        lines.append(f"rate {demand.rate:,.10g}/s: {kept} the other bounds")
    for bound, relaxed in _relaxed(bounds, search).items():
        free = search.best(demand, relaxed).chosen
        needs = "dropping it alone does not help" if free is None else f"without it there is {_needs(free)}"
        lines.append(f"{bound}: {needs}")
    return PlanError(
        "no setup keeps all bounds:\n" + "\n".join(f"  {line}" for line in lines),
        "relax one of them as shown, or several where no single one helps; or sweep more batch sizes, "
        "precisions and streams",
    )


def _at_best(found: SearchResult) -> str:
    """What the closest comes to."""
    closest = found.closest
    if closest is None:
        return "dropping it does not help: nothing serves this load within the other bounds"
    if not math.isfinite(closest.prediction.goal.value):
        return f"the closest rejects more than the SLO leaves out: {closest.setup.name}"
    serves, goal = math.isfinite(closest.prediction.p99.value), closest.prediction.goal
    rejects = "" if serves else ", and rejects more than 1 % of the requests"
    came_to = f"{goal.value:.3g} ms ({goal.low:.3g} to {goal.high:.3g})"
    return f"the closest comes to {came_to}{rejects}: {closest.setup.name}"


def _relaxed(bounds: Bounds, search: Search) -> Mapping[str, Bounds]:
    relaxed: dict[str, Bounds] = {}
    if bounds.memory_bytes is not None:
        known = "" if search.knows_memory else ", and no engine's memory was measured"
        relaxed[f"memory {_size(bounds.memory_bytes)}{known}"] = replace(bounds, memory_bytes=None)
    if bounds.max_engines < search.most_engines:
        relaxed[f"max-engines {bounds.max_engines}"] = replace(bounds, max_engines=search.most_engines)
    if bounds.for_triton:
        relaxed["for Triton"] = replace(bounds, for_triton=False)
    return relaxed


def _needs(free: Outcome) -> str:
    memory = free.setup.memory_bytes()
    takes = f"{_size(memory)}, " if memory is not None else ""
    return f"{free.setup.name} ({takes}{free.prediction.goal.value:.3g} ms)"


def _size(nbytes: int) -> str:
    """In the largest unit of which there is one."""
    power = min(3, max(0, nbytes.bit_length() - 1) // 10)
    return f"{nbytes / 1024**power:,.4g} {('B', 'KiB', 'MiB', 'GiB')[power]}"
