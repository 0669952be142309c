"""How often `trtopt history` sees a change that is there, and one that is not, next to simpler rules.

    python benchmarks/history/rates.py                    # writes the tables into README.md
    python benchmarks/history/rates.py --series 2 --no-write

A run is 3 s of queries of about 1 ms on a machine with known noise. After 20 to 44 equal runs come five that
are 3 % slower or faster. `trtopt history check` judges the newest run of each of `STORIES`. Needs no GPU.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import RandomState

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "verdict-rates"))
import peers
from coverage import correlated
from simulate import KINDS, with_tables

from trtopt.measure.statistics.change_points import change_points
from trtopt.workflows.history import verdict_on

HERE = Path(__file__).resolve().parent
EFFECT = 1.03
QUERIES = 3000
AFTER = 5
LAST_LIMIT = 0.02
BENCHER_RUNS = 64
Runs = Sequence[np.ndarray]
STORIES = {
    "equal runs": [(45, 0)],
    "five slower ones": [(24, 0), (5, 1)],
    "ten slower ones": [(24, 0), (10, 1)],
    "eight slower ones, then five as before": [(24, 0), (8, 1), (5, 0)],
    "fifteen slower ones, then ten as before": [(24, 0), (15, 1), (10, 0)],
    "five faster ones": [(24, 0), (5, -1)],
    "fifteen faster ones": [(24, 0), (15, -1)],
    "twelve faster ones, then five as before": [(24, 0), (12, -1), (5, 0)],
    "twelve faster ones, then five slower than ever": [(24, 0), (12, -1), (5, 1)],
}
"""Parts of a series: how many runs, and the power of the effect that they have."""
EFFECTS = (EFFECT, 1.1)
VERDICTS = ("SLOWER", "UNDECIDED", "FASTER", "SAME")
POOL = 400
DRIFT = "drifting"
"""Runs whose luck is an AR(1) of 0.9 with σ 1 %; each is quiet."""


@dataclass(frozen=True)
class Rates:
    """Of one rule on one kind of noise: alarms among the runs `before`, and changes found among `series`."""

    alarms: int = 0
    before: int = 0
    found: int = 0
    series: int = 0

    def __add__(self, other: Rates) -> Rates:
        return Rates(*(a + b for a, b in zip(self.row, other.row, strict=True)))

    @property
    def row(self) -> tuple[int, int, int, int]:
        """All four."""
        return self.alarms, self.before, self.found, self.series

    def __str__(self) -> str:
        return f"{self.alarms / self.before:.2%} / {self.found / self.series:.0%}"


def _history(runs: Runs) -> list[tuple[int, int]]:
    """For each alarm the run at which it begins, and its direction."""
    figures = [[float(np.quantile(run, share)) for run in runs] for share in (0.5, 0.1)]
    return [(one.index, 1 if one.ratio > 1 else -1) for one in change_points(figures)]


def _one_by_one(rule: Callable[[Runs], int]) -> Callable[[Runs], list[tuple[int, int]]]:
    """A rule on the newest run, after each."""
    return lambda runs: [(end - 1, sign) for end in range(9, len(runs) + 1) if (sign := rule(runs[:end]))]


def _last(runs: Runs) -> int:
    change = math.log(float(np.median(runs[-1]) / np.median(runs[-2])))
    return int(change > LAST_LIMIT) - int(change < -LAST_LIMIT)


RULES: dict[str, Callable[[Runs], list[tuple[int, int]]]] = {
    "trtopt history": _history,
    "2 % off the run before": _one_by_one(_last),
    "Mann–Whitney of the last two": _one_by_one(lambda runs: peers.benchstat(runs[-2], runs[-1])),
    "bencher's t-test": _one_by_one(
        lambda runs: peers.bencher(np.array([run.mean() for run in runs[-1 - BENCHER_RUNS : -1]]), runs[-1])
    ),
}


def rates(kind: str, series: int) -> dict[str, Rates]:
    """All rules on the same series of one kind of noise."""
    noise, luck = KINDS[kind]
    random = RandomState(list(KINDS).index(kind))
    found = dict.fromkeys(RULES, Rates())
    for _ in range(series):
        at, sign = int(random.randint(20, 45)), int(random.choice([-1, 1]))
        effects = np.where(np.arange(at + AFTER) < at, 1.0, EFFECT**sign)
        runs = [
            noise(random, QUERIES) * effect * math.exp(luck * random.standard_normal()) for effect in effects
        ]
        for name, rule in RULES.items():
            before = rule(runs[:at])
            new = [one for one in rule(runs) if one not in before]
            hit = any(place >= at - AFTER and way == sign for place, way in new)
            found[name] += Rates(len(before), at, int(hit), 1)
    return found


def _figures(runs: Runs) -> np.ndarray:
    return np.array([[np.quantile(run, share) for share in (0.5, 0.1)] for run in runs])


def verdicts(kind: str, series: int) -> dict[tuple[str, float], Counter[str]]:
    """Of `trtopt history check` on the newest run of each series; runs are drawn from a pool of them."""
    random = RandomState(list(KINDS).index(kind) if kind in KINDS else len(KINDS))
    noise, luck = KINDS.get(kind, KINDS["quiet: σ 1 %"])
    pool = _figures([noise(random, QUERIES) for _ in range(POOL)])
    found = {}
    for story, parts in STORIES.items():
        powers = np.repeat([power for _, power in parts], [count for count, _ in parts])
        for effect in EFFECTS[: 1 if story == "equal runs" else None]:
            counts: Counter[str] = Counter()
            for _ in range(series):
                shocks = luck * random.standard_normal(len(powers))
                if kind == DRIFT:
                    shocks = np.log(correlated(random, len(powers), 0.9, 0.01))
                rows = pool[random.randint(0, POOL, len(powers))]
                columns = (rows * (effect**powers * np.exp(shocks))[:, None]).T.tolist()
                bounds = [0, *(one.index for one in change_points(columns)), len(powers)]
                counts[verdict_on(columns, bounds)[0]] += 1
            found[story, effect] = counts
    return found


def verdicts_table(kinds: Sequence[dict[tuple[str, float], Counter[str]]]) -> str:
    """Percent of the series of all kinds, and of those whose runs drift."""
    lines = [f"| series | {' | '.join(VERDICTS)} |", f"|---|{'---:|' * len(VERDICTS)}"]
    for (story, effect), drifting in kinds[-1].items():
        total = sum((one[story, effect] for one in kinds[:-1]), Counter())
        cells = [
            f"{total[verdict] / total.total():.1%} ({drifting[verdict] / drifting.total():.0%})"
            for verdict in VERDICTS
        ]
        size = "" if story == "equal runs" else f", {effect - 1:.0%}"
        lines.append(f"| {story}{size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Simulate all kinds, and write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--series", type=int, default=48, help="series for each kind of noise")
    parser.add_argument("--no-write", action="store_true", help="print the tables only")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(rates, KINDS, [arguments.series] * len(KINDS)))
        kinds = [*KINDS, DRIFT]
        judged = verdicts_table(list(pool.map(verdicts, kinds, [arguments.series] * len(kinds))))
    lines = [f"| noise | {' | '.join(RULES)} |", f"|---|{'---:|' * len(RULES)}"]
    for kind, row in zip(KINDS, results, strict=True):
        lines.append(f"| {kind} | {' | '.join(str(row[name]) for name in RULES)} |")
    totals = [sum((row[name] for row in results), Rates()) for name in RULES]
    lines.append(f"| **all kinds** | {' | '.join(f'**{total}**' for total in totals)} |")
    tables = {"rates": "\n".join(lines), "verdicts": judged}
    print("\n\n".join(tables.values()))
    if not arguments.no_write:
        page = HERE / "README.md"
        page.write_text(with_tables(page.read_text("utf-8"), tables), "utf-8")


if __name__ == "__main__":
    main()
