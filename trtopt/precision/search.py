"""The search for the smallest set of nodes to keep in higher precision; pure, whatever evaluates a set.

First sensitivity: each group of nodes alone in low precision, all others high. Kept in that order, the most
sensitive first, a short run of groups that meets the bound is found by doubling and halving. Then delta
debugging drops whatever is not needed: it tries arbitrary subsets and takes nothing to be monotone, so that
nodes that hurt only together, or cancel one another, are found too. Groups are runs of nodes in the order of
the graph; those that are left are split down to single nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

_Item = TypeVar("_Item")
Holds = Callable[[Sequence[_Item]], bool]
Names = frozenset[str]
Evaluate = Callable[[Names], float]
"""From the nodes that are kept in higher precision to the error, as a share of what is allowed."""
ALLOWED = 1.0
"""The most that the error of a set that meets the bound can be."""
FEWEST = 2
"""Evaluations without which there is no result: with nothing kept and with everything."""
_SHARE_FOR_RANKING = 4
"""At most one evaluation in so many is spent on the first ranking."""


@dataclass(frozen=True)
class Trial:
    """A set of nodes kept in higher precision, the error with it, and what it costs."""

    kept: Names
    error: float
    cost: float

    @property
    def meets(self) -> bool:
        """Whether the bound is met."""
        return self.error <= ALLOWED


@dataclass(frozen=True)
class Found:
    """What a search found.

    `best` has the fewest nodes of all sets that were tried and meet the bound, and of those the least cost;
    None: not even keeping everything meets it. `minimal`: without any single one of its nodes the bound is
    not met. `alone` are groups of nodes and the error with them alone in low precision, the largest first.
    """

    best: Trial | None
    minimal: bool
    alone: tuple[tuple[Names, float], ...]
    trials: tuple[Trial, ...]


def search(shares: Mapping[str, float], evaluate: Evaluate, most: int) -> Found:
    """The smallest set of nodes that meets the bound, in at most `most` evaluations, no set evaluated twice.

    Args:
        shares: every node that could be low, in the order of the graph, with its share of the cost.
        evaluate: the error with these nodes kept, 1 for what is just allowed.
        most: how many evaluations there may be, 2 at least; once spent, the best so far is the answer.
    """
    seeker = _Search(shares, evaluate, most)
    everything = frozenset(shares)
    if seeker.meets(frozenset()) or not seeker.meets(everything):
        return seeker.found(minimal=True)
    try:
        seeker.narrow()
        minimal = True
    except Spent:
        minimal = False
    return seeker.found(minimal=minimal)


def front(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """The trials that no other beats in both error and cost, the cheapest first; of equals the smallest."""
    kept: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: (trial.cost, trial.error, len(trial.kept))):
        if not kept or trial.error < kept[-1].error:
            kept.append(trial)
    return tuple(kept)


class Spent(Exception):
    """No evaluation is left."""


class _Search:
    """The trials so far, and the steps that add to them."""

    def __init__(self, shares: Mapping[str, float], evaluate: Evaluate, most: int) -> None:
        self._shares, self._evaluate, self._most = shares, evaluate, most
        self._everything = frozenset(shares)
        self._trials: dict[Names, Trial] = {}
        self._alone: dict[Names, float] = {}

    def error(self, kept: Names) -> float:
        """The error with these nodes kept; evaluated once, then from memory."""
        if kept not in self._trials:
            if len(self._trials) >= self._most:
                raise Spent
            cost = sum(share for name, share in self._shares.items() if name in kept)
            self._trials[kept] = Trial(kept, self._evaluate(kept), cost)
        return self._trials[kept].error

    def meets(self, kept: Names) -> bool:
        """Whether the bound is met with these nodes kept."""
        return self.error(kept) <= ALLOWED

    def found(self, *, minimal: bool) -> Found:
        """What is known by now."""
        alone = tuple(sorted(self._alone.items(), key=lambda item: -item[1]))
        return Found(self._best(), minimal, alone, tuple(self._trials.values()))

    def _best(self) -> Trial | None:
        good = [trial for trial in self._trials.values() if trial.meets]
        return min(good, key=lambda trial: (len(trial.kept), trial.cost), default=None)

    def narrow(self) -> None:
        """From everything to a set of which no single node can be dropped."""
        left, size = list(self._shares), len(self._shares)
        while size > 1:
            most_groups = max(2, self._most // _SHARE_FOR_RANKING)
            size = max(1, min(ceil(len(left) / most_groups), size // 2))
            ranked = self._ranked(_cut(left, size))
            needed = minimal(short_start(ranked, self._suffices), self._suffices)
            left = [name for unit in needed for name in unit]
        settled = frozenset(left)
        while (best := self._best()) is not None and best.kept != settled:
            names = [name for name in self._shares if name in best.kept]
            settled = _union(minimal(_cut(names, 1), self._suffices))

    def _suffices(self, units: Sequence[Sequence[str]]) -> bool:
        return self.meets(_union(units))

    def _ranked(self, units: list[list[str]]) -> list[list[str]]:
        """The units with the largest error alone in low precision first."""
        for unit in units:
            alone = frozenset(unit)
            self._alone[alone] = self.error(self._everything - alone)
        return sorted(units, key=lambda unit: -self._alone[frozenset(unit)])


def short_start(items: Sequence[_Item], holds: Holds[_Item]) -> Sequence[_Item]:
    """A short run of the first items for which this holds, as it does for all of them."""
    short, long = 0, 1
    while long < len(items) and not holds(items[:long]):
        short, long = long, 2 * long
    long = min(long, len(items))
    while long - short > 1:
        middle = (short + long) // 2
        short, long = (short, middle) if holds(items[:middle]) else (middle, long)
    return items[:long]


def minimal(items: Sequence[_Item], holds: Holds[_Item]) -> Sequence[_Item]:
    """Items of which none can be dropped, out of those for which this holds together.

    Zeller and Hildebrandt's ddmin.
    """
    parts = 2
    while len(items) > 1:
        size = ceil(len(items) / parts)
        chunks = _cut(items, size)
        rests = [[*items[:start], *items[start + size :]] for start in range(0, len(items), size)]
        if (chunk := next(filter(holds, chunks), None)) is not None:
            items, parts = chunk, 2
        elif (rest := next(filter(holds, reversed(rests)), None)) is not None:
            items, parts = rest, max(2, parts - 1)
        elif parts >= len(items):
            break
        else:
            parts = min(len(items), 2 * parts)
    return items


def _union(units: Sequence[Sequence[str]]) -> Names:
    return frozenset(name for unit in units for name in unit)


def _cut(items: Sequence[_Item], size: int) -> list[list[_Item]]:
    """Runs of `size` items; the last may be shorter."""
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
