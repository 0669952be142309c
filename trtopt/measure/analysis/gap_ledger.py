"""The gap ledger: where the difference between two contracts comes from, term by term.

From one contract to another, one term changes at a time and each step is measured; the steps' differences
add up to the whole exactly. Terms interact (a graph gains less when the host's wait hides launching), so a
step's figure belongs to its place in the order, which is fixed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import cast

from trtopt.measure.contracts import changed
from trtopt.measure.statistics.intervals import student
from trtopt.records import Contract, Terms

START = "start"
HOST_LOOP = "Python loop"
"""The name of the step from a Python loop to a bare one, which no contract's term describes."""

_ONLY_WITH_TRANSFERS = "pinned"


@dataclass(frozen=True)
class Step:
    """`contract` differs from the step before it only in `term`."""

    term: str
    contract: Contract


def steps_between(start: Contract, end: Contract) -> tuple[Step, ...]:
    """The contracts to measure, `start` and `end` among them; only terms that differ get a step.

    Terms change in the order of `records.Terms`. What means nothing without transfers changes while they
    are on: after they are turned on, or before they are turned off.
    """
    order = list(Terms.__annotations__)
    if start.transfers and not end.transfers:
        order.remove("transfers")
        order.insert(order.index(_ONLY_WITH_TRANSFERS) + 1, "transfers")
    steps, current = [Step(START, start)], start
    changing = [term for term in order if getattr(start, term) != getattr(end, term)]
    for term in changing[:-1]:
        current = changed(current, cast(Terms, {term: getattr(end, term)}))
        steps.append(Step(term, current))
    if changing:
        steps.append(Step(changing[-1], end))
    return tuple(steps)


@dataclass(frozen=True)
class Point:
    """A step's figure in milliseconds, a value for each load of the engine, in which every step had turns."""

    term: str
    loads_ms: tuple[float, ...]

    @property
    def mean_ms(self) -> float:
        """Over all loads."""
        return fmean(self.loads_ms)


@dataclass(frozen=True)
class Entry:
    """What one term did, in microseconds, ± half the 95 % interval. `explained_us` is 0 within that.

    A term that plays no part in a figure changes it by 0 ± 0.
    """

    term: str
    change_us: float
    uncertainty_us: float

    @property
    def significant(self) -> bool:
        """Whether the change is beyond its uncertainty."""
        return abs(self.change_us) > self.uncertainty_us

    @property
    def explained_us(self) -> float:
        """What the term answers for."""
        return self.change_us if self.significant else 0.0


@dataclass(frozen=True)
class Ledger:
    """The whole difference and what each term answers for; `unexplained_us` is the rest: all adds up."""

    start_ms: float
    end_ms: float
    entries: tuple[Entry, ...]

    @property
    def difference_us(self) -> float:
        """From the start's figure to the end's."""
        return (self.end_ms - self.start_ms) * 1e3

    @property
    def unexplained_us(self) -> float:
        """Changes within noise, and what the chain's own ends do not reproduce of the stated difference."""
        return self.difference_us - math.fsum(entry.explained_us for entry in self.entries)


def entry(before: Point, after: Point) -> Entry:
    """What the step from one point to the next changes: Student's t interval of the loads' differences.

    Both ran in the same rounds, so that the difference cancels their conditions; but each has a context of
    its own, and how contexts differ is averaged out by loads, not by rounds. One load gives no uncertainty.
    """
    changes = [(b - a) * 1e3 for a, b in zip(before.loads_ms, after.loads_ms, strict=True)]
    if len(changes) == 1:
        return Entry(after.term, changes[0], math.inf)
    error = stdev(changes) / math.sqrt(len(changes))
    return Entry(after.term, fmean(changes), student(len(changes) - 1) * error)


def ledger(points: Sequence[Point], start_ms: float | None = None, end_ms: float | None = None) -> Ledger:
    """Assign the difference to the terms, given the points in the order of `steps_between`.

    `start_ms` and `end_ms` are the figures whose difference is to be explained, if they were measured apart
    from the chain, in result files for instance; by default the chain's own ends.
    """
    if not points:
        raise ValueError("a ledger needs at least its start")
    return Ledger(
        points[0].mean_ms if start_ms is None else start_ms,
        points[-1].mean_ms if end_ms is None else end_ms,
        tuple(entry(before, after) for before, after in pairwise(points)),
    )
