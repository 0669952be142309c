"""How often the 95 % interval of a run's p50 and p99 holds the true one, by the noise that the run was in.

    python benchmarks/verdict-rates/coverage.py [RUNS]      # prints the table

One query a millisecond goes through the rule that ends passes; the interval is that of the report. What is
true is known: the percentile of three million queries of the same noise, or of the drift of the whole run.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from trtopt.measure.loop.stopping import Limits, StoppingRule
from trtopt.measure.statistics.intervals import percentile_interval

Latencies = NDArray[np.float64]
QUERY_S = 1e-3
PERCENTILES = (50.0, 99.0)
PLANS = (Limits(duration_s=3.0), Limits(duration_s=10.0), Limits(duration_s=10.0, stop_early=True))
_TRUE_RUNS, _TRUE_COUNT = 100, 30_000


def correlated(random: RandomState, count: int, phi: float, sigma: float) -> Latencies:
    """Log-normal around 1 ms, AR(1) on the logarithm."""
    noise = random.standard_normal(count) * np.sqrt(1 - phi**2)
    level, logs = float(random.standard_normal()), np.empty(count)
    for index, shock in enumerate(noise.tolist()):
        level = phi * level + shock
        logs[index] = level
    return np.exp(sigma * logs)


def states(random: RandomState, count: int, off_s: float, on_s: float) -> NDArray[np.bool_]:
    """Whether it is on, at each query; both states last exponential times."""
    found = np.empty(count, np.bool_)
    on, at = bool(random.random_sample() < on_s / (on_s + off_s)), 0
    while at < count:
        length = max(1, round(random.exponential(on_s if on else off_s) / QUERY_S))
        found[at : at + length] = on
        on, at = not on, at + length
    return found


def quiet(random: RandomState, count: int) -> Latencies:
    """Independent, σ 1 %."""
    return np.exp(0.01 * random.standard_normal(count))


def _tail(random: RandomState, count: int) -> Latencies:
    spiked = random.random_sample(count) < 0.01
    return quiet(random, count) * np.where(spiked, 2 + random.exponential(1.0, count), 1.0)


def _busy(random: RandomState, count: int, off_s: float) -> Latencies:
    slower = np.where(states(random, count, off_s, 0.3), 1 + random.exponential(1.0, count), 1.0)
    return np.exp(0.03 * random.standard_normal(count)) * slower


def _switching(off_s: float, on_s: float, factor: float) -> Callable[[RandomState, int], Latencies]:
    return lambda random, count: (
        quiet(random, count) * np.where(states(random, count, off_s, on_s), factor, 1.0)
    )


def _beat(random: RandomState, count: int) -> Latencies:
    phase = np.arange(count) * QUERY_S + random.random_sample()
    return quiet(random, count) * (1 + 0.05 * np.sin(2 * np.pi * phase))


KINDS: dict[str, Callable[[RandomState, int], Latencies]] = {
    "quiet: σ 1 %": quiet,
    "1 % spikes of 3 times": _tail,
    "a clock that ticks 2 %": lambda random, count: np.round(quiet(random, count) * 50) / 50,
    "AR(1) 0.8, σ 3 %": lambda random, count: correlated(random, count, 0.8, 0.03),
    "AR(1) 0.99, σ 3 %": lambda random, count: correlated(random, count, 0.99, 0.03),
    "AR(1) 0.999, σ 3 %": lambda random, count: correlated(random, count, 0.999, 0.03),
    "two modes, 8 %, 0.2 and 0.13 s": _switching(0.2, 0.13, 1.08),
    "two modes, 8 %, 0.6 and 0.4 s": _switching(0.6, 0.4, 1.08),
    "two modes, 8 %, 3 and 2 s": _switching(3.0, 2.0, 1.08),
    "spells of 50 ms, 5 %, 3 times": _switching(0.95, 0.05, 3.0),
    "spells of 0.4 s, 30 %, 1.3 times": _switching(0.93, 0.4, 1.3),
    "busy half of the time, 0.3 s": lambda random, count: _busy(random, count, 0.3),
    "busy 30 % of the time, 0.3 s": lambda random, count: _busy(random, count, 0.7),
    "a beat of 1 s, ±5 %": _beat,
    "drift of 10 % over the run": lambda random, count: (
        quiet(random, count) * (1 + 0.1 * np.arange(count) / count)
    ),
}


@dataclass
class Coverage:
    """Of one kind under one plan, counts of runs: whose interval misses what is true, and which state none.

    Of each percentile. `widths` are of the intervals that were stated; `early` runs ended early.
    """

    runs: int
    missed: list[int]
    unknown: list[int]
    widths: list[list[float]]
    early: int = 0

    def cells(self, place: int) -> str:
        """For the table, of one percentile: missed and not known, in percent, and the median half-width."""
        width = f"±{np.median(self.widths[place]):.2%}" if self.widths[place] else "–"
        return f"{self.share(self.missed[place])} | {self.share(self.unknown[place])} | {width}"

    def share(self, count: int) -> str:
        """In percent."""
        return f"{100 * count / self.runs:.0f}"


def coverage(name: str, limits: Limits, runs: int, seed: int) -> Coverage:
    """Of `runs` runs of a kind of noise."""
    noise, random = KINDS[name], RandomState(seed)
    count = round(limits.duration_s / QUERY_S)
    true = _true(name, count if name.startswith("drift") else _TRUE_COUNT)
    found = Coverage(runs, [0, 0], [0, 0], [[], []])
    for _ in range(runs):
        taken, rule = _taken(noise(random, count), limits)
        found.early += rule.ended_by == "steady"
        for place, p in enumerate(PERCENTILES):
            one = percentile_interval(taken, p)
            if one.relative_half_width == math.inf:
                found.unknown[place] += 1
            else:
                found.widths[place].append(one.relative_half_width)
            found.missed[place] += one.low is not None and true[place] < one.low
            found.missed[place] += one.high is not None and true[place] > one.high
    return found


def _taken(values: Latencies, limits: Limits) -> tuple[Latencies, StoppingRule]:
    """The values that the rule took; it is asked after every tenth of a second."""
    rule, step = StoppingRule(limits), round(0.1 / QUERY_S)
    for begin in range(0, len(values), step):
        for value in values[begin : begin + step].tolist():
            rule.add(value)
        if rule.is_finished((begin + step) * QUERY_S + 1e-9):
            return values[: begin + step], rule
    raise AssertionError("the rule takes more than its duration")


@lru_cache
def _true(name: str, count: int) -> tuple[float, ...]:
    """Of a run of so many queries, or of 30,000 where the noise does not depend on the run's length."""
    if name.startswith("a clock"):
        return tuple(map(float, np.percentile(quiet(RandomState(0), 1_000_000), PERCENTILES)))
    random = RandomState(0)
    values = np.concatenate([KINDS[name](random, count) for _ in range(_TRUE_RUNS)])
    return tuple(map(float, np.percentile(values, PERCENTILES)))


def table(runs: int) -> str:
    """Markdown: for each kind of noise, what is missed after 3 and 10 s, and stopped early."""
    columns = "missed | not known | half-width"
    lines = [
        f"| noise | 3 s, p50: {columns} | p99: {columns} | 10 s, p50: {columns} | p99: {columns} "
        "| 10 s `--stop-early`, p50: missed | ended early |",
        "|---|" + "---:|" * 14,
    ]
    for number, name in enumerate(KINDS):
        *whole, early = (coverage(name, limits, runs, number) for limits in PLANS)
        cells = [one.cells(place) for one in whole for place in range(len(PERCENTILES))]
        ended = f"{early.share(early.missed[0])} | {early.share(early.early)}"
        lines.append(f"| {name} | {' | '.join((*cells, ended))} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


if __name__ == "__main__":
    table(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
