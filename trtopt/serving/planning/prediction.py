"""What a setup does under a load, by simulating it several times. Pure, and seeded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from trtopt.measure.load.arrivals import Goal
from trtopt.measure.statistics.intervals import student
from trtopt.measure.statistics.summaries import needed_for
from trtopt.records import Estimate, Prediction
from trtopt.serving.planning.setups import Fleet, Setup
from trtopt.serving.planning.simulation import Arrivals, Simulated, simulate
from trtopt.serving.planning.traffic import Process, Recorded, arrivals_at, lengths_of

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


def latencies_ms(run: Simulated) -> NDArray[np.float64]:
    """Of all requests in the order of arrival; those rejected are infinitely late."""
    return np.where(run.served, (run.end_s - run.arrival_s) * 1e3, math.inf)


def latency_ms(run: Simulated, p: float) -> float:
    """A percentile of them."""
    return percentile(latencies_ms(run), p)


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
        every = latencies_ms(run)
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
