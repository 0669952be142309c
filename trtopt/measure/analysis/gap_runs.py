"""What to measure for a gap ledger, and the ledgers made of it.

Two figures are decomposed, because contracts differ in both. Latency is the median from enqueueing a query to
having its output, with one query in flight. The time per query is the reciprocal of the rate with the
contract's queue and streams. Terms without effect on one query in flight (the queue, the streams) are not in
the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from trtopt.measure.analysis.gap_ledger import HOST_LOOP, Ledger, Point, Step, entry, ledger, steps_between
from trtopt.measure.analysis.outcomes import Gap
from trtopt.measure.contracts import one_in_flight
from trtopt.measure.loop.interleaved import Variant
from trtopt.measure.loop.rounds import ValidRounds
from trtopt.measure.statistics.loads import by_load
from trtopt.records import BenchPoint, Contract, Samples, TurnSamples

Ends = tuple[float, float]


def gap_variants(start: Contract, end: Contract) -> tuple[Variant, ...]:
    """Every step in both modes, but for steps that change nothing in one; then the bare loops, if any."""
    variants: list[Variant] = []
    previous: Contract | None = None
    for step in steps_between(start, end):
        terms = one_in_flight(step.contract)
        if previous is None or _unnamed(terms) != _unnamed(previous):
            variants.append(Variant(name=step.term, engine=0, contract=step.contract, mode="latency"))
        previous = terms
        variants.append(Variant(name=step.term, engine=0, contract=step.contract, mode="throughput"))
    if has_bare_loop(end):
        variants += [
            Variant(name=HOST_LOOP, engine=0, contract=end, mode="latency", bare=True),
            Variant(name=HOST_LOOP, engine=0, contract=end, mode="throughput", bare=True),
        ]
    return tuple(variants)


def has_bare_loop(end: Contract) -> bool:
    """Whether a bare loop can keep the terms: it has no events to order copies by or to sleep on."""
    return not end.transfers and end.sync == "spin"


def _unnamed(contract: Contract) -> Contract:
    return msgspec.structs.replace(contract, name="")


def evaluate_gap(
    batch: int,
    start: Contract,
    end: Contract,
    rounds: ValidRounds,
    latency_ends: Ends | None = None,
    per_query_ends: Ends | None = None,
) -> Gap:
    """Both ledgers, from what the variants' turns came to.

    The ends are figures in milliseconds that were measured elsewhere: their difference is to be explained.
    """
    steps = steps_between(start, end)
    modes = [
        {turn.name: turn for turn in rounds.turns if turn.mode == mode} for mode in ("latency", "throughput")
    ]
    chains = [_chain(steps, found, rounds.loads) for found in modes]
    loops = [
        entry(chain[-1], _point(found[HOST_LOOP], rounds.loads)) if HOST_LOOP in found else None
        for chain, found in zip(chains, modes, strict=True)
    ]
    return Gap(
        batch=batch,
        latency=_ledger(chains[0], latency_ends),
        per_query=_ledger(chains[1], per_query_ends),
        loop_latency=loops[0],
        loop_per_query=loops[1],
    )


def _ledger(chain: Sequence[Point], ends: Ends | None) -> Ledger:
    return ledger(chain, *(ends or ()))


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
    throughput = time_per_query if turns.bare else time_between
    figure = median_latency if turns.mode == "latency" else throughput
    return Point(turns.name, tuple(by_load(list(map(figure, turns.blocks)), loads).values()))


def median_latency(samples: Samples) -> float:
    """Milliseconds."""
    return median(samples.latency_ms)


def time_per_query(samples: Samples) -> float:
    """Milliseconds of wall time per query: the reciprocal of the rate."""
    return samples.wall_ms / len(samples.start_ms)


def time_between(samples: Samples) -> float:
    """Milliseconds from one query's end to the next one's, on average: at least two queries are needed.

    A block is short, so that filling its queue would show in its wall time: the first copy overlaps nothing.
    """
    return (max(samples.end_ms) - min(samples.end_ms)) / (len(samples.end_ms) - 1)


def ends_of(start: BenchPoint, end: BenchPoint) -> tuple[Ends, Ends | None]:
    """Both figures of two results; no time per query unless both hold a throughput pass."""
    latency = median_latency(start.latency.samples), median_latency(end.latency.samples)
    if start.throughput is None or end.throughput is None:
        return latency, None
    return latency, (time_per_query(start.throughput.samples), time_per_query(end.throughput.samples))
