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
from trtopt.records import Beyond, Estimate, Prediction
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

    Latencies are multiplied by the factors of trial runs over their own simulations. The intervals
    (`estimate`) cover the scatter of runs and processes and the uncertainty of the curves, not how a machine
    changes from day to day.
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
        estimate(values, setup.cost.beyond_at(p), percentile(np.concatenate(pooled), p))
        for p, values in zip(percentiles, latencies, strict=True)
    )
    return Prediction(
        requests=requests,
        runs=runs,
        p50=p50,
        p99=p99,
        goal=aimed,
        throughput=estimate(throughputs),
        mean_batch=float(served / batches),
        busy=float(busy),
    )


def estimate(values: Sequence[float], beyond: Beyond | None = None, pooled: float | None = None) -> Estimate:
    """The mean of simulated runs times the factor of `beyond`, and the interval of one more run.

    `pooled` is the figure of all runs' requests together, if that is known: where slow spells are rare most
    runs have none, and the mean of their percentiles is too low.

    About 95 of 100 fall into it: mean ± t · √(A + B), where A = s² · (1 + 1/runs) is the runs' part and
    B = mean² · (spread² + error²) the factor's, of which another process has another. Student's t has the
    degrees of freedom of Welch and Satterthwaite, (A + B)² / (A² / (runs - 1) + B² / (trials - 1)).
    """
    if not np.isfinite(values).all():
        return Estimate(value=math.inf, low=min(values), high=math.inf)
    factor = beyond.factor if beyond is not None else 1.0
    mean = (float(np.mean(values)) if pooled is None else pooled) * factor
    runs = (float(np.std(values, ddof=1)) * factor) ** 2 * (1 + 1 / len(values))
    processes = mean**2 * (beyond.spread**2 + beyond.error**2) if beyond is not None else 0.0
    freedom = float(len(values) - 1)
    if beyond is not None and processes > 0:
        parts = runs**2 / freedom + processes**2 / (beyond.trials - 1)
        freedom = max(1.0, (runs + processes) ** 2 / parts)
    half = student(freedom) * math.sqrt(runs + processes)
    return Estimate(value=mean, low=max(0.0, mean - half), high=mean + half)


# ── how far trial runs were from simulations of their own arrivals ──────────────────────────────────────

_ENOUGH, _GAP = 4, 0.926
"""Dixon's Q at 99 % for four values: where the slowest of four is farther from the next than this share of
their range, it is none of them (Rorabacher, Analytical Chemistry 63, 1991, table 1).
"""

_MOST = 1000.0
"""Times what was simulated; as good as never, which a file cannot say."""


@dataclass(frozen=True)
class TrialError:
    """Milliseconds of each request in the order of arrival, infinite without an answer: measured, and in
    simulations of the same arrivals.
    """

    took_ms: NDArray[np.float64]
    simulated_ms: Sequence[NDArray[np.float64]]


def beyond(trials: Sequence[TrialError], percentiles: Sequence[float]) -> tuple[Beyond, ...]:
    """Measured over simulated latency, at the percentiles for which there are enough requests, ascending."""
    found = []
    for p in sorted(set(percentiles)):
        each = [one for trial in trials if (one := _beyond(trial, p)) is not None]
        if each:
            found.append(_together(p, [factor for factor, _ in each], [chance for _, chance in each]))
    return tuple(found)


def held_up(trials: Sequence[TrialError], percentiles: Sequence[float]) -> tuple[int, Beyond] | None:
    """The one of four or more that the machine held up, at the highest percentile that all have."""
    for p in sorted(set(percentiles), reverse=True):
        each = [_beyond(trial, p) for trial in trials]
        factors = [one[0] for one in each if one is not None]
        if len(factors) == len(each):
            slowest = int(np.argmax(factors))
            is_apart = len(factors) >= _ENOUGH and _is_apart(sorted(factors))
            return (slowest, Beyond(p=p, factor=factors[slowest])) if is_apart else None
    return None


def _is_apart(ascending: Sequence[float]) -> bool:
    """Whether the last is none of the others."""
    return ascending[-1] - ascending[-2] > _GAP * (ascending[-1] - ascending[0])


def _beyond(trial: TrialError, p: float) -> tuple[float, float] | None:
    """The factor of one trial run, and its variance by chance according to simulations.

    Of all its requests: the slowest belong to the percentile, and where every process stalls a little, a part
    of it without a stall would promise too much.
    """
    if len(trial.took_ms) < needed_for(p):
        return None
    simulated_ms = np.array([percentile(run, p) for run in trial.simulated_ms])
    usual_ms = simulated_ms.mean()
    if not np.isfinite(usual_ms):
        return None
    factor = min(percentile(trial.took_ms, p) / float(usual_ms), _MOST)
    return factor, factor**2 * float((simulated_ms / usual_ms).var(ddof=1))


def _together(p: float, factors: Sequence[float], chances: Sequence[float]) -> Beyond:
    """Of processes that differ from one another, and by chance.

    Their median: what is predicted is a typical run, and one or two of them may have stalled.
    """
    count, median = len(factors), float(np.median(factors))
    variance = float(np.var(factors, ddof=1)) if count > 1 else 0.0
    between = max(0.0, variance - float(np.mean(chances)))
    return Beyond(
        p=p,
        factor=median,
        error=math.sqrt(variance / count) / median if median else 0.0,
        spread=math.sqrt(between) / median if median else 0.0,
        trials=count,
    )
