"""What is kept of a run in turns: the rounds that nothing spoilt. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from trtopt.measure.analysis.interference import Interference, evaluate_groups
from trtopt.measure.statistics.comparison import by_load
from trtopt.records import InterleavedRun, TurnSamples


@dataclass(frozen=True)
class ValidRounds:
    """The subjects' turns without spoilt rounds, and the number of the load that each round was taken in.

    `interfered` are reasons not to trust what is left. `orders` are those in which each load loaded the
    subjects, as indices of `turns`.
    """

    turns: tuple[TurnSamples, ...]
    loads: tuple[int, ...]
    interference: Interference
    failure: str | None = None
    orders: tuple[tuple[int, ...], ...] = ()

    @property
    def interfered(self) -> tuple[str, ...]:
        """What slowed the run down, if too much did."""
        return (self.interference.text,) if self.interference.untrustworthy else ()

    @property
    def failures(self) -> tuple[str, ...]:
        """What broke the run off: what is left is no comparison."""
        return _failures(self.failure)

    def is_reversed(self, second: int = 1) -> list[bool] | None:
        """Of each round, whether a subject was loaded before the first one; None where unknown."""
        if not self.orders:
            return None
        return [self.orders[load].index(second) < self.orders[load].index(0) for load in self.loads]


def _failures(problem: str | None) -> tuple[str, ...]:
    return () if problem is None else (f"the device failed in the middle: {problem}",)


def valid_rounds(run: InterleavedRun) -> ValidRounds:
    """Discard every round in which a turn was taken under a slowdown, from all subjects alike.

    So is a round that a failing device broke off: not every subject had its turn. Where no round is left all
    are kept, and the run is not to be trusted.
    """
    found = evaluate_groups(run.clocks, run.clock_reference.mhz)
    subjects = len(run.turns)
    spoilt = {group.index // subjects for group in found.groups if group.discarded}
    complete = range(min(len(turns.blocks) for turns in run.turns))
    rounds = [number for number in complete if number not in spoilt] or complete
    kept = tuple(
        msgspec.structs.replace(turns, blocks=tuple(turns.blocks[number] for number in rounds))
        for turns in run.turns
    )
    starts = [one.round for one in run.loadings[1:]]
    loads = tuple(bisect_right(starts, number) for number in rounds)
    orders = tuple(one.order for one in run.loadings)
    return ValidRounds(kept, loads, found, run.failure, orders)


def ms_by_load(turns: TurnSamples, loads: Sequence[int]) -> list[float]:
    """The median of the blocks' median latencies in each load, in milliseconds."""
    return list(by_load([median(block) for block in latency_blocks(turns)], loads).values())


def pooled_ms(turns: TurnSamples) -> float:
    """The median latency of all blocks, in milliseconds."""
    return median(value for block in turns.blocks for value in block.latency_ms)


def latency_blocks(turns: TurnSamples) -> list[list[float]]:
    """Each block's latencies in milliseconds."""
    return [block.latency_ms for block in turns.blocks]


def notes_of(runs: Sequence[InterleavedRun]) -> list[str]:
    """The subjects' notes, how often they were loaded, and those on the clocks, once each."""
    notes = [note for run in runs for turns in run.turns for note in turns.notes]
    for run in runs:
        notes += [
            f"batch {run.batch}: {text}; what was measured until then is kept, and nothing came after"
            for text in _failures(run.failure)
        ]
        found = valid_rounds(run).interference
        if found.clocks_known and found.text:
            notes.append(found.text)
        elif not found.clocks_known:
            notes.append(f"clocks are unknown: {run.clock_reference.problem or 'not reported'}")
    if counts := [len(run.loadings) for run in runs if len(run.loadings) > 1]:
        times = str(min(counts)) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
        notes.append(f"loaded {times} times: the interval is over loads, for loads of one engine differ")
    return list(dict.fromkeys(notes))
