"""What a rule can find at all: one that knows the noise, on the series of rates.py.

    python benchmarks/history/bound.py

A run is seven quantiles of its queries. The rule knows their covariance for that kind of noise, weights them
so that a change of all by 3 % stands out most (for Gaussian noise no rule finds more), and compares the mean
of five runs with that of the thirty before. Its limit is where one in a hundred such comparisons of equal
runs would alarm. Prints, for each kind, how much runs differ, and the changes found. Needs no GPU.
"""

from __future__ import annotations

import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from numpy.random import RandomState

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "verdict-rates"))
from rates import AFTER, EFFECT, QUERIES
from simulate import KINDS

QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
RUNS, SERIES, BEFORE, ALARMS = 1200, 20_000, 30, 0.01


def bound(kind: str) -> tuple[float, float]:
    """The standard deviation of runs' medians, and the share of changes that the rule finds."""
    noise, luck = KINDS[kind]
    random = RandomState(1000 + list(KINDS).index(kind))
    runs = np.log(
        [
            np.quantile(noise(random, QUERIES) * math.exp(luck * random.standard_normal()), QUANTILES)
            for _ in range(RUNS)
        ]
    )
    covariance = np.cov(runs.T) + 1e-9 * np.eye(len(QUANTILES))
    weights = np.linalg.solve(covariance, np.ones(len(QUANTILES)))
    levels = runs @ (weights / weights.sum())
    newest, before = (
        levels[random.randint(RUNS, size=(SERIES, count))].mean(axis=1) for count in (AFTER, BEFORE)
    )
    gaps = newest - before
    limit = np.quantile(np.abs(gaps), 1 - ALARMS)
    return float(runs[:, QUANTILES.index(0.5)].std()), float(np.mean(gaps + math.log(EFFECT) > limit))


def main() -> None:
    """All kinds of noise, and their mean."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(bound, KINDS))
    for kind, (deviation, found) in zip(KINDS, results, strict=True):
        print(f"{kind}: medians differ by {deviation:.1%}, found {found:.0%}")
    print(f"all kinds: found {sum(found for _, found in results) / len(results):.1%}")


if __name__ == "__main__":
    main()
