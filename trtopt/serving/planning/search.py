"""Which setup to choose, which are rejected and why, and what each bound costs. Pure.

Setups are eliminated in stages: first without simulation, then by simulations of growing length, which keep
the best of every number of engines. The last ones are predicted with intervals.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from trtopt.errors import PlanError
from trtopt.measure.load.arrivals import Goal, Probe, RateSearch
from trtopt.records import BatchPolicy, Estimate, Prediction, Rejected
from trtopt.serving.planning.prediction import Demand, latency_ms, predict, requests_of, run_once
from trtopt.serving.planning.service_times import NO_COST, Costs
from trtopt.serving.planning.setups import DELAYS, Fleet, MeasuredEngine, Setup, fleets, worker_counts

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
    """What a plan must keep. `for_triton`: one engine that runs every batch size."""

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


@dataclass
class Reasons:
    """Why setups were rejected: of those with one reason the first is named and all are counted."""

    counted: dict[str, Rejected] = field(default_factory=dict)

    def add(self, setup: str, kind: str, reason: str) -> None:
        """Count one; `kind` is what reasons have in common."""
        known = self.counted.get(kind, Rejected(setup=setup, reason=reason, count=0))
        self.counted[kind] = structs.replace(known, count=known.count + 1)


@dataclass(frozen=True)
class SearchResult:
    """What was found: the chosen one, None if nothing keeps the bounds; the closest; and who was rejected."""

    chosen: Outcome | None
    finalists: tuple[Outcome, ...]
    rejected: tuple[Rejected, ...]

    @property
    def closest(self) -> Outcome | None:
        """The one with the lowest latency at the goal's percentile."""
        return min(self.finalists, key=lambda one: one.prediction.goal.value, default=None)


class Search:
    """Searches among measured engines; what is costly to know of a set of engines is found out once."""

    def __init__(
        self,
        engines: Sequence[MeasuredEngine],
        costs: Costs = NO_COST,
    ) -> None:
        self._engines, self._costs = tuple(engines), costs
        self._fleets: dict[int, list[Fleet]] = {}
        self.most_engines = min(MAX_ENGINES, len(engines))
        self.knows_memory = any(engine.memory is not None for engine in engines)

    def best(self, demand: Demand, bounds: Bounds) -> SearchResult:
        """The setup with the lowest latency that keeps the bounds, or a simpler one that is as good.

        Simpler is: fewer engines, fewer workers, less memory. As good: its latency is within the best's
        interval, or within 5 %.
        """
        reasons = Reasons()
        left = self._worth_simulating(demand, bounds, reasons)
        for keep, requests in _SIEVE:
            left = _sieved(left, demand, bounds.goal, keep, requests, reasons)
        finalists = sorted(
            (Outcome(setup, predict(setup, demand, bounds.goal)) for setup in left),
            key=lambda one: one.prediction.goal.value,
        )
        chosen = simplest([one for one in finalists if one.keeps(bounds.goal)])
        for one in finalists:
            if one is not chosen:
                reasons.add(one.setup.name, one.setup.name, against(one, chosen, bounds.goal))
        return SearchResult(chosen, tuple(finalists), tuple(reasons.counted.values()))

    def highest_rate(self, demand: Demand, bounds: Bounds) -> tuple[float, SearchResult] | None:
        """The highest rate at which a setup keeps the bounds for certain, within 5 %; None: there is none."""
        within = self._within(demand, bounds, Reasons())
        capacities = (
            setup.capacity(shares) for setup, shares in within if setup.fleet.least_ms <= bounds.goal.limit_ms
        )
        capacity = max(capacities, default=0.0)
        if not capacity:
            return None
        search, choices = RateSearch(bounds.goal, capacity / 2, resolution=_RATE_STEP), {}
        while (rate := search.next_rate) is not None:
            choices[rate] = self.best(demand.at(rate), bounds)
            chosen = choices[rate].chosen
            search.add(Probe(rate, chosen.prediction.goal.high if chosen is not None else None))
        return (search.best.rate, choices[search.best.rate]) if search.best is not None else None

    # ── before any simulation ───────────────────────────────────────────────────────────────────────────

    def _within(self, demand: Demand, bounds: Bounds, reasons: Reasons) -> list[tuple[Setup, list[float]]]:
        """What there is within the bounds on engines and memory, without a delay; and shares by length."""
        found: list[tuple[Setup, list[float]]] = []
        for fleet in self._of_engines(bounds.max_engines):
            shares = demand.shares_of(fleet)
            if shares is None:
                reasons.add(fleet.name, "length", f"takes lengths up to {fleet.lengths[-1]} only")
                continue
            if bounds.for_triton and not (len(fleet.engines) == 1 and fleet.engines[0].is_for_triton):
                reasons.add(fleet.name, "triton", "Triton batches for one engine that runs every batch size")
                continue
            for max_batch in fleet.largest_batches():
                if not all(fleet.batches_used(max_batch)):
                    reasons.add(fleet.name, "unused", "one of the engines would never be used")
                    continue
                for workers in worker_counts(fleet):
                    setup = Setup(fleet, workers, BatchPolicy(max_batch=max_batch, max_delay_ms=0.0))
                    if self._fits(setup, bounds, reasons):
                        found.append((setup, shares))
        return found

    def _of_engines(self, most: int) -> list[Fleet]:
        if most not in self._fleets:
            self._fleets[most] = list(fleets(self._engines, most, self._costs))
        return self._fleets[most]

    @staticmethod
    def _fits(setup: Setup, bounds: Bounds, reasons: Reasons) -> bool:
        if bounds.memory_bytes is None:
            return True
        memory = setup.memory_bytes()
        if memory is None:
            reasons.add(setup.name, "memory unknown", "its memory was not measured")
            return False
        if memory > bounds.memory_bytes:
            reasons.add(setup.name, "memory", f"takes {_size(memory)} of device memory")
            return False
        return True

    def _worth_simulating(self, demand: Demand, bounds: Bounds, reasons: Reasons) -> list[Setup]:
        """The most promising of each number of engines, with every delay; the rest with its reason."""
        promising: dict[int, list[tuple[float, Setup]]] = defaultdict(list)
        for setup, shares in self._within(demand, bounds, reasons):
            capacity = setup.capacity(shares)
            if capacity <= demand.rate:
                reasons.add(setup.name, "capacity", f"takes {capacity:,.0f} requests/s at most")
                continue
            rough_ms = setup.expected_ms(demand.rate, shares)
            promising[len(setup.fleet.engines)].append((rough_ms, setup))
        chosen: list[Setup] = []
        for rough in promising.values():
            rough.sort(key=lambda one: one[0])
            chosen += [setup for _, setup in rough[:_SIMULATED]]
            for rough_ms, setup in rough[_SIMULATED:]:
                reasons.add(setup.name, "unpromising", f"roughly {rough_ms:.3g} ms: others promise more")
        return [
            replace(setup, policy=_delayed(setup.policy, share * bounds.goal.limit_ms))
            for setup in chosen
            for share in DELAYS
        ]


def _delayed(policy: BatchPolicy, delay_ms: float) -> BatchPolicy:
    return BatchPolicy(max_batch=policy.max_batch, max_delay_ms=delay_ms, max_waiting=policy.max_waiting)


def _latency(setup: Setup, demand: Demand, goal: Goal, requests: int) -> float:
    enough = max(requests, requests_of(goal, 0.0))
    return latency_ms(run_once(setup, demand, enough, seed=0), goal.p)


def _sieved(
    setups: Sequence[Setup], demand: Demand, goal: Goal, keep: int, requests: int, reasons: Reasons
) -> list[Setup]:
    """The fastest of each number of engines, fastest first; all of them meet the same requests."""
    measured = sorted(
        ((_latency(setup, demand, goal, requests), setup) for setup in setups), key=lambda one: one[0]
    )
    kept: list[Setup] = []
    counts: dict[int, int] = defaultdict(int)
    for ms, setup in measured:
        counts[len(setup.fleet.engines)] += 1
        if counts[len(setup.fleet.engines)] <= keep:
            kept.append(setup)
        else:
            met = "misses the goal" if ms > goal.limit_ms else "keeps the goal, others do better"
            reasons.add(setup.name, met, f"p{goal.p:g} of {ms:.3g} ms in {requests:,} requests: {met}")
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


def in_ms(estimate: Estimate) -> str:
    """For people."""
    return f"{estimate.value:.3g} ms ({estimate.low:.3g} to {estimate.high:.3g})"


def against(one: Outcome, chosen: Outcome | None, goal: Goal) -> str:
    """Why another one was chosen, if any was."""
    estimate = one.prediction.goal
    figure = f"p{goal.p:g} {in_ms(estimate)}"
    if estimate.low > goal.limit_ms:
        return f"{figure}: misses the goal"
    if estimate.high > goal.limit_ms:
        return f"{figure}: does not keep the goal for certain"
    if not math.isfinite(one.prediction.p99.value):
        return f"{figure}: rejects more than 1 % of the requests"
    assert chosen is not None
    if estimate.value < chosen.prediction.goal.value:
        return f"{figure}: no better for certain than the chosen one, which is simpler"
    return f"{figure}: no better than the chosen one"


# ── when nothing keeps the bounds ───────────────────────────────────────────────────────────────────────


def nothing_keeps(
    search: Search, demand: Demand, bounds: Bounds, found: SearchResult, rate_given: bool
) -> PlanError:
    """The error with the cost of each bound: the best setup without it, the others being kept."""
    lines = [f"{bounds.goal}: {_at_best(found)}"]
    if rate_given:
        highest = search.highest_rate(demand, bounds)
        kept = "no rate keeps" if highest is None else f"up to {highest[0]:,.0f}/s keep"
        lines.append(f"rate {demand.rate:g}/s: {kept} the other bounds")
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
    serves = math.isfinite(closest.prediction.p99.value)
    rejects = "" if serves else ", and rejects more than 1 % of the requests"
    return f"the closest comes to {in_ms(closest.prediction.goal)}{rejects}: {closest.setup.name}"


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
