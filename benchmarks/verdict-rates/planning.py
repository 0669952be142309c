"""How far a plan's p99 is from the true one, and how often it promises a bound that the setup breaks.

    python benchmarks/verdict-rates/planning.py [PLANS]      # prints the table

An engine for batches of 1 to 8 is measured in a closed loop, 3 s for each of four batch sizes, on a machine
with the noise of the row. From these samples alone the plan predicts the p99 of one worker under Poisson
arrivals. What is true is known from a queue of its own here, served for three minutes on the same machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median

import numpy as np
from coverage import states
from numpy.random import RandomState
from numpy.typing import NDArray

from trtopt.measure.load.arrivals import Goal
from trtopt.records import BatchPolicy
from trtopt.serving.planning.search import Demand, predict
from trtopt.serving.planning.setups import Curve, Fleet, MeasuredEngine, Setup

BASE_MS = {1: 1.0, 2: 1.2, 4: 1.6, 8: 2.4}
MEASURED_S, TRUE_S, TRUE_RUNS = 3.0, 30.0, 6
LOADS = (0.3, 0.5, 0.8)
BROKEN, KEPT = 0.8, 1.25
"""Bounds as shares of the true p99: one that the setup breaks, and one that it keeps with room to spare."""

Factor = Callable[[float], float]
"""By how much a batch that begins at a time, in seconds, takes longer than usual."""


def steady(random: RandomState, seconds: float) -> Factor:
    """Independent, σ 5 %."""
    return lambda at_s: float(np.exp(0.05 * random.standard_normal()))


def tail(random: RandomState, seconds: float) -> Factor:
    """The same, and 1 % of the batches take four times as long."""
    return lambda at_s: (
        float(np.exp(0.05 * random.standard_normal())) * (4 if random.random_sample() < 0.01 else 1)
    )


def spells(off_s: float, on_s: float, factor: float) -> Callable[[RandomState, float], Factor]:
    """The same, and spells of time in which every batch takes `factor` times as long."""

    def made(random: RandomState, seconds: float) -> Factor:
        slow = states(random, int(seconds * 1e3) + 1000, off_s, on_s).tolist()
        quiet = steady(random, seconds)
        return lambda at_s: quiet(at_s) * (factor if slow[int(at_s * 1e3) % len(slow)] else 1)

    return made


KINDS: dict[str, Callable[[RandomState, float], Factor]] = {
    "independent, σ 5 %": steady,
    "1 % of the batches 4 times": tail,
    "spells of 50 ms, 5 % of the time, 3 times": spells(0.95, 0.05, 3.0),
    "spells of 50 ms, 5 % of the time, 6 times": spells(0.95, 0.05, 6.0),
    "spells of 0.2 s, 10 % of the time, 2 times": spells(1.8, 0.2, 2.0),
}


def measured(kind: str, seed: int) -> MeasuredEngine:
    """One closed loop after the other, as a sweep takes them."""
    series = {}
    for batch, base_ms in BASE_MS.items():
        factor = KINDS[kind](RandomState(1000 * seed + batch), MEASURED_S)
        now_ms, taken = 0.0, list[float]()
        while now_ms < MEASURED_S * 1e3:
            taken.append(base_ms * factor(now_ms / 1e3))
            now_ms += taken[-1]
        series[batch] = taken
    return MeasuredEngine("made up", "0", "fp32", {0: (Curve(1, 8, {1: series}),)})


def true_p99_ms(kind: str, rate: float) -> float:
    """Of one worker that takes what waits, up to 8, as soon as it is free."""
    latencies = [_served(KINDS[kind], rate, RandomState(seed)) for seed in range(TRUE_RUNS)]
    return float(np.percentile(np.concatenate(latencies), 99))


def _served(
    kind: Callable[[RandomState, float], Factor], rate: float, random: RandomState
) -> NDArray[np.float64]:
    at_s = np.cumsum(random.exponential(1 / rate, int(TRUE_S * rate))).tolist()
    factor, free_s, first, found = kind(random, TRUE_S), 0.0, 0, list[float]()
    while first < len(at_s):
        now_s, last = max(free_s, at_s[first]), first
        while last < len(at_s) and last - first < 8 and at_s[last] <= now_s:
            last += 1
        free_s = now_s + _base_ms(last - first) * factor(now_s) / 1e3
        found += [(free_s - arrived_s) * 1e3 for arrived_s in at_s[first:last]]
        first = last
    return np.array(found)


def _base_ms(rows: int) -> float:
    return float(np.interp(rows, list(BASE_MS), list(BASE_MS.values())))


def table(plans: int) -> str:
    """Markdown: for each kind of noise and load, errors and bounds."""
    lines = [
        "| noise | load | true p99, ms | predicted: median error | from | to "
        f"| bound broken by {1 / BROKEN - 1:.0%}: called good | bound kept: called good |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for kind in KINDS:
        engines = [measured(kind, seed) for seed in range(plans)]
        for load in LOADS:
            rate = load * 8 / BASE_MS[8] * 1e3
            true_ms = true_p99_ms(kind, rate)
            errors, broken, kept = list[float](), 0, 0
            for engine in engines:
                setup = Setup(
                    Fleet([engine]), 1, BatchPolicy(max_batch=8, max_delay_ms=0.0, max_waiting=100_000)
                )
                goal = predict(setup, Demand("poisson", rate, {0: 1.0}), Goal(99.0, true_ms)).goal
                errors.append(goal.value / true_ms - 1)
                broken += goal.high <= BROKEN * true_ms
                kept += goal.high <= KEPT * true_ms
            low, high = min(errors), max(errors)
            lines.append(
                f"| {kind} | {load} | {true_ms:.2f} | {median(errors):+.0%} | {low:+.0%} | {high:+.0%} "
                f"| {broken} of {plans} | {kept} of {plans} |"
            )
            print(lines[-1], flush=True)
    return "\n".join(lines)


if __name__ == "__main__":
    table(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
