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
from typing import cast

from trtopt.measure.contracts import changed
from trtopt.records import Contract, Terms

START = "start"
HOST_LOOP = "Python loop"
"""The name of the step from a Python loop to a bare one, which no contract's term describes."""

_ONLY_WITH_TRANSFERS = "pinned"


@dataclass(frozen=True)
class Step:
    """`contract` differs from the step before it in `term` alone."""

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
    """A step's measured median in milliseconds with its 95 % interval."""

    term: str
    median_ms: float
    low_ms: float
    high_ms: float


@dataclass(frozen=True)
class Entry:
    """What one term did, in microseconds, ± half the 95 % interval. `explained_us` is 0 within that."""

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
        """From the start's median to the end's."""
        return (self.end_ms - self.start_ms) * 1e3

    @property
    def unexplained_us(self) -> float:
        """Changes within noise, and what the chain's own ends do not reproduce of the stated difference."""
        return self.difference_us - math.fsum(entry.explained_us for entry in self.entries)


def ledger(points: Sequence[Point], start_ms: float | None = None, end_ms: float | None = None) -> Ledger:
    """Assign the difference to the terms, given the points in the order of `steps_between`.

    `start_ms` and `end_ms` are the medians whose difference is to be explained, if they were measured apart
    from the chain, in result files for instance; by default the chain's own ends. A change's uncertainty is
    √(u₁² + u₂²) of the half-intervals of the two points, which were measured independently.

    Raises:
        ValueError: no points.
    """
    if not points:
        raise ValueError("a ledger needs at least its start")
    entries = tuple(
        Entry(
            after.term,
            (after.median_ms - before.median_ms) * 1e3,
            math.hypot(before.high_ms - before.low_ms, after.high_ms - after.low_ms) / 2 * 1e3,
        )
        for before, after in pairwise(points)
    )
    return Ledger(
        points[0].median_ms if start_ms is None else start_ms,
        points[-1].median_ms if end_ms is None else end_ms,
        entries,
    )


def rows(result: Ledger) -> list[tuple[str, str, str]]:
    """A table's rows: term, change in µs with its uncertainty, what it explains in µs (signed)."""
    table = [("from", "", f"{result.start_ms * 1e3:.1f}")]
    for entry in result.entries:
        explained = f"{entry.explained_us:+.1f}" if entry.significant else "within noise"
        table.append((entry.term, f"{entry.change_us:+.1f} ± {entry.uncertainty_us:.1f}", explained))
    table.append(("unexplained", "", f"{result.unexplained_us:+.1f}"))
    table.append(("to", "", f"{result.end_ms * 1e3:.1f}"))
    return table
