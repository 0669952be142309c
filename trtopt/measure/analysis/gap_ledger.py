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
from collections.abc import Iterable, Mapping, Sequence
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


def steps_between(start: Contract, end: Contract) -> dict[str, Contract]:
    """The contracts to measure, `start` and `end` among them, each by the term that changes with it.

    Terms change in the order of `Contract`. What means nothing without transfers changes while they
    are on: after they are turned on, or before they are turned off.
    """
    order = list(TERMS)
    if start.transfers and not end.transfers:
        order.remove("transfers")
        order.insert(order.index(_ONLY_WITH_TRANSFERS) + 1, "transfers")
    steps, current = {START: start}, start
    changing = [term for term in order if getattr(start, term) != getattr(end, term)]
    for term in changing:
        current = end if term == changing[-1] else with_terms(current, {term: getattr(end, term)})
        steps[term] = current
    return steps


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


Loads = Sequence[float]
"""A step's figure in milliseconds in each load of the engine; every step had turns in all of them."""


def entry(term: str, before: Loads, after: Loads) -> Entry:
    """What the step to a term changes: Student's t interval of the loads' differences.

    Both ran in the same rounds, so that the difference cancels their conditions; but each has a context of
    its own, and how contexts differ is averaged out by loads, not by rounds. One load gives no uncertainty.
    """
    changes = [(b - a) * 1e3 for a, b in zip(before, after, strict=True)]
    if len(changes) == 1:
        return Entry(term, changes[0], math.inf)
    error = stdev(changes) / math.sqrt(len(changes))
    return Entry(term, fmean(changes), student(len(changes) - 1) * error)


def ledger(points: Mapping[str, Loads]) -> Ledger:
    """Assign the difference to the terms, given each step's figures in the order of `steps_between`."""
    means = [fmean(loads) for loads in points.values()]
    entries = (entry(term, before, after) for (_, before), (term, after) in pairwise(points.items()))
    return Ledger(means[0], means[-1], tuple(entries))


def gap_variants(start: Contract, end: Contract) -> tuple[Variant, ...]:
    """Every step in both modes, but for steps that change nothing in one."""
    variants: list[Variant] = []
    previous: Contract | None = None
    for term, contract in steps_between(start, end).items():
        terms = one_in_flight(contract)
        if previous is None or _unnamed(terms) != _unnamed(previous):
            variants.append(Variant(name=term, engine=0, contract=contract, mode="latency"))
        previous = terms
        variants.append(Variant(name=term, engine=0, contract=contract, mode="throughput"))
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


def _chain(steps: Iterable[str], turns: Mapping[str, TurnSamples], loads: Sequence[int]) -> dict[str, Loads]:
    """Each step's figures; those before it of one that was not measured, or ran on the same terms in fact."""
    chain: dict[str, Loads] = {}
    figures: Loads = ()
    terms: Contract | None = None
    for step in steps:
        found = turns.get(step)
        if found is not None and (terms is None or _unnamed(found.contract) != _unnamed(terms)):
            figures, terms = _by_load(found, loads), found.contract
        chain[step] = figures
    return chain


def _by_load(turns: TurnSamples, loads: Sequence[int]) -> Loads:
    figure = (lambda block: median(block.latency_ms)) if turns.mode == "latency" else time_between
    return [*by_load([figure(block) for block in turns.blocks], loads).values()]


def time_between(samples: Samples) -> float:
    """Milliseconds from one query's end to the next one's, on average: at least two queries are needed.

    A block is short, so that filling its queue would show in its wall time: the first copy overlaps nothing.
    """
    return (max(samples.end_ms) - min(samples.end_ms)) / (len(samples.end_ms) - 1)
