"""The gap ledger: where the difference between two contracts comes from, term by term.

From one contract to another, one term changes at a time and each step is measured; the steps' differences
add up to the whole exactly. Terms interact (a graph gains less when the host's wait hides launching), so a
step's figure belongs to its place in the order, which is fixed here.

Two figures are decomposed, because contracts differ in both. Latency is the median from enqueueing a query to
having its output, with one query in flight. The time per query is the reciprocal of the rate with the
contract's queue and streams. Terms without effect on one query in flight (the queue, the streams) are not in
the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev

import msgspec

from trtopt.measure.contracts import TERMS, one_in_flight, with_terms
from trtopt.measure.loop.interleaved import ValidRounds, Variant
from trtopt.measure.statistics.comparison import by_load
from trtopt.measure.statistics.intervals import student
from trtopt.records import Contract, Samples, TurnSamples

START = "start"
_ONLY_WITH_TRANSFERS = "pinned"


@dataclass(frozen=True)
class Step:
    """`contract` differs from the step before it only in `term`."""

    term: str
    contract: Contract


def steps_between(start: Contract, end: Contract) -> tuple[Step, ...]:
    """The contracts to measure, `start` and `end` among them; only terms that differ get a step.

    Terms change in the order of `Contract`. What means nothing without transfers changes while they
    are on: after they are turned on, or before they are turned off.
    """
    order = list(TERMS)
    if start.transfers and not end.transfers:
        order.remove("transfers")
        order.insert(order.index(_ONLY_WITH_TRANSFERS) + 1, "transfers")
    steps, current = [Step(START, start)], start
    changing = [term for term in order if getattr(start, term) != getattr(end, term)]
    for term in changing[:-1]:
        current = with_terms(current, {term: getattr(end, term)})
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
        """Changes within noise."""
        return self.difference_us - math.fsum(entry.explained_us for entry in self.entries)


@dataclass(frozen=True)
class Gap:
    """One batch size under two contracts: the ledgers of latency (one in flight) and of time per query."""

    batch: int
    latency: Ledger
    per_query: Ledger


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


def ledger(points: Sequence[Point]) -> Ledger:
    """Assign the difference to the terms, given the points in the order of `steps_between`."""
    if not points:
        raise ValueError("a ledger needs at least its start")
    return Ledger(
        points[0].mean_ms,
        points[-1].mean_ms,
        tuple(entry(before, after) for before, after in pairwise(points)),
    )


def gap_variants(start: Contract, end: Contract) -> tuple[Variant, ...]:
    """Every step in both modes, but for steps that change nothing in one."""
    variants: list[Variant] = []
    previous: Contract | None = None
    for step in steps_between(start, end):
        terms = one_in_flight(step.contract)
        if previous is None or _unnamed(terms) != _unnamed(previous):
            variants.append(Variant(name=step.term, engine=0, contract=step.contract, mode="latency"))
        previous = terms
        variants.append(Variant(name=step.term, engine=0, contract=step.contract, mode="throughput"))
    return tuple(variants)


def _unnamed(contract: Contract) -> Contract:
    return msgspec.structs.replace(contract, name="")


def evaluate_gap(batch: int, start: Contract, end: Contract, rounds: ValidRounds) -> Gap:
    """Both ledgers, from what the variants' turns came to."""
    steps = steps_between(start, end)
    latency, per_query = (
        ledger(_chain(steps, {turn.name: turn for turn in rounds.turns if turn.mode == mode}, rounds.loads))
        for mode in ("latency", "throughput")
    )
    return Gap(batch, latency, per_query)


def _chain(steps: Sequence[Step], turns: Mapping[str, TurnSamples], loads: Sequence[int]) -> list[Point]:
    """A point a step. One that was not measured, or ran on the same terms in fact, is the one before it."""
    chain: list[Point] = []
    terms: Contract | None = None
    for step in steps:
        found = turns.get(step.term)
        if found is None or (terms is not None and _unnamed(found.contract) == _unnamed(terms)):
            chain.append(Point(step.term, chain[-1].loads_ms))
        else:
            chain.append(_point(found, loads))
            terms = found.contract
    return chain


def _point(turns: TurnSamples, loads: Sequence[int]) -> Point:
    figure = median_latency if turns.mode == "latency" else time_between
    return Point(turns.name, tuple(by_load(list(map(figure, turns.blocks)), loads).values()))


def median_latency(samples: Samples) -> float:
    """Milliseconds."""
    return median(samples.latency_ms)


def time_between(samples: Samples) -> float:
    """Milliseconds from one query's end to the next one's, on average: at least two queries are needed.

    A block is short, so that filling its queue would show in its wall time: the first copy overlaps nothing.
    """
    return (max(samples.end_ms) - min(samples.end_ms)) / (len(samples.end_ms) - 1)
