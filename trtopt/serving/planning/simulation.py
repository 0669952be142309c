"""When requests arrive, and a discrete-event simulation of the batcher on its workers. Pure, and seeded.

The runtime's own policy decides. Between two decisions nothing leaves the queues, so that time may jump: to
the next arrival, to the end of somebody's delay, to the end of a batch. Several idle workers are alike: the
first takes the batch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import Literal

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from trtopt.errors import DataError, UsageError
from trtopt.measure.load.arrivals import Load, arrivals_s
from trtopt.records import BatchPolicy, ServingCost
from trtopt.serving.batching_policy import Wait, Waiting, decide
from trtopt.serving.planning.setups import FREE, Service, Slowness, added_ms


@dataclass(frozen=True)
class Recorded:
    """Arrivals that were seen, in seconds from the first, with the length of each, empty without any."""

    at_s: tuple[float, ...]
    lengths: tuple[int, ...] = ()

    @property
    def rate(self) -> float:
        """Arrivals a second on average."""
        return (len(self.at_s) - 1) / self.at_s[-1]


Process = Literal["poisson", "constant"] | Recorded


def parse_process(text: str) -> Process:
    """The value of `--arrivals`: `poisson` or `constant`."""
    if text == "poisson":
        return "poisson"
    if text == "constant":
        return "constant"
    raise UsageError(
        f"--arrivals {text}: neither a kind of arrivals nor a file",
        "give poisson, constant, or a file of arrivals, for bursts as well",
    )


def parse_recorded(text: str, name: str) -> Recorded:
    """A file of arrivals: a line for each, its time in seconds and, after a space or comma, its length.

    Empty lines and what follows a # are left out. Times need not begin at zero.
    """
    rows: list[tuple[float, ...]] = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.partition("#")[0].replace(",", " ").split()
        if not fields:
            continue
        try:
            time_s, *length = row = (float(fields[0]), *map(int, fields[1:]))
            before = rows[-1] if rows else row
            is_arrival = math.isfinite(time_s) and time_s >= before[0]
            is_arrival &= len(row) == len(before) and (not length or (len(length) == 1 and length[0] >= 1))
        except ValueError:
            is_arrival = False
        if not is_arrival:
            raise DataError(
                f"{name}:{number}: {line.strip()[:60]!r} is no arrival: a time in seconds, no earlier than "
                "the one before; and, in every line or in none, a length of 1 at least",
                "write one arrival per line, as 0.0125 or 0.0125,384, sorted by time",
            )
        rows.append(row)
    if len(rows) < 2 or rows[-1][0] == rows[0][0]:
        raise DataError(f"{name}: {len(rows)} arrivals are too few for a rate", "record more of them")
    lengths = tuple(int(length) for _, *lengths in rows for length in lengths)
    return Recorded(tuple(row[0] - rows[0][0] for row in rows), lengths)


def arrivals_at(process: Process, rate: float, count: int, seed: int) -> NDArray[np.float64]:
    """When about `count` requests arrive at `rate` a second on average, in seconds, the first at 0.

    A record is stretched to the rate; one that is shorter is repeated, and begun at a place by the seed.
    """
    if isinstance(process, Recorded):
        return _recorded(process, rate, count, seed)
    return np.asarray(arrivals_s(Load(rate, process), count / rate, seed))


def lengths_of(process: Process, shares: Mapping[int, float], count: int, seed: int) -> NDArray[np.int64]:
    """How long each request is: as recorded with its arrival, else drawn by the shares of lengths."""
    if isinstance(process, Recorded) and process.lengths:
        return np.asarray(process.lengths, np.int64)[_places(process, count, seed)]
    weights = np.asarray([shares[length] for length in sorted(shares)])
    return RandomState(seed).choice(np.asarray(sorted(shares), np.int64), count, p=weights / weights.sum())


def _places(process: Recorded, count: int, seed: int) -> NDArray[np.int64]:
    """Which of the recorded arrivals the simulated ones are; the whole record begins where it began."""
    length = len(process.at_s)
    begin = RandomState(seed).randint(length) if count < length else 0
    return (begin + np.arange(count)) % length


def _recorded(process: Recorded, rate: float, count: int, seed: int) -> NDArray[np.float64]:
    times = np.asarray(process.at_s)
    gaps = np.append(times[:1], np.diff(times))
    gaps[0] = 1 / process.rate  # between the last one and the first of the next round
    places = _places(process, count, seed)
    at_s = np.cumsum(gaps[places]) * (process.rate / rate)
    started: NDArray[np.float64] = at_s - at_s[0]
    return started


@dataclass(frozen=True)
class Arrivals:
    """When requests arrive, in seconds, ascending; and the shape of each, as an index of services."""

    at_s: NDArray[np.float64]
    shape: NDArray[np.int64]


@dataclass(frozen=True)
class Simulated:
    """What became of the requests, in the order of arrival, in seconds.

    `start_s` and `end_s` are of the batch that a request ran in, whose number is `batch`; of a request that
    was rejected they are NaN and -1. Batches are numbered in the order of their starts.
    """

    arrival_s: NDArray[np.float64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    batch: NDArray[np.int64]
    busy_s: float

    @property
    def served(self) -> NDArray[np.bool_]:
        """Which requests were not rejected."""
        return self.batch >= 0

    @property
    def latencies_ms(self) -> NDArray[np.float64]:
        """From arrival to answer; who was rejected is infinitely late."""
        return np.where(self.served, (self.end_s - self.arrival_s) * 1e3, math.inf)

    @property
    def throughput(self) -> float:
        """Requests answered a second, from the first arrival to the last answer."""
        return float(self.served.sum() / (np.nanmax(self.end_s) - self.arrival_s[0]))


def simulate(
    services: Sequence[Service],
    workers: int,
    policy: BatchPolicy,
    arrivals: Arrivals,
    seed: int = 0,
    cost: ServingCost = FREE,
) -> Simulated:
    """Serve all arrivals; `services` has one for each shape of request, `cost` is what serving adds.

    A batch that begins while others run takes what it was measured to take among as many.
    """
    at_s: list[float] = [*arrivals.at_s.tolist(), math.inf]  # after the last one none comes
    shapes: list[int] = arrivals.shape.tolist()
    slowness = Slowness(services, RandomState(seed))
    free_s = [-math.inf] * workers  # a heap of when workers are, or were, done
    queues: dict[int, deque[int]] = {}  # requests by shape, the oldest first; none is empty
    served: list[int] = []
    counts: list[int] = []  # of each batch; and when it ran
    starts_s: list[float] = []
    ends_s: list[float] = []
    arrived = waiting = 0
    busy_s, now_s = 0.0, -math.inf
    while queues or at_s[arrived] < math.inf:
        now_s = max(now_s, free_s[0])
        if not queues:
            now_s = max(now_s, at_s[arrived])
        while at_s[arrived] <= now_s:
            if waiting < policy.max_waiting:  # nothing has left since the last decision: else it is rejected
                queues.setdefault(shapes[arrived], deque()).append(arrived)
                waiting += 1
            arrived += 1
        step = decide(now_s, [Waiting(len(queue), at_s[queue[0]]) for queue in queues.values()], policy)
        if isinstance(step, Wait):
            now_s = min(step.until_s, at_s[arrived])
            continue
        shape, count = list(queues)[step.queue], step.count
        served += [queues[shape].popleft() for _ in range(count)]
        if not queues[shape]:
            del queues[shape]  # as the batcher's: a queue that comes again comes last
        waiting -= count
        running = 1 + sum([one > now_s for one in free_s])
        slow = (slowness.at(now_s) for _ in range(count))
        seconds = added_ms(cost, count) / 1e3 + services[shape].takes_s(count, running, slow)
        heapreplace(free_s, now_s + seconds)
        busy_s += seconds
        counts.append(count)
        starts_s.append(now_s)
        ends_s.append(now_s + seconds)
    start_s, end_s = np.full(len(shapes), math.nan), np.full(len(shapes), math.nan)
    batch = np.full(len(shapes), -1, np.int64)
    start_s[served] = np.repeat(starts_s, counts)
    end_s[served] = np.repeat(ends_s, counts)
    batch[served] = np.repeat(np.arange(len(counts)), counts)
    return Simulated(arrivals.at_s, start_s, end_s, batch, busy_s)
