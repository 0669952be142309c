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
    times: list[float] = []
    lengths: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.partition("#")[0].replace(",", " ").split()
        if not fields:
            continue
        try:
            times.append(float(fields[0]))
            lengths += [int(field) for field in fields[1:]]
        except ValueError:
            raise DataError(
                f"{name}:{number}: {line.strip()!r} is not a time in seconds, with an optional length",
                "write one arrival per line, as 0.0125 or 0.0125,384",
            ) from None
        if fault := _against(times, lengths, len(fields)):
            problem, remedy = fault
            raise DataError(f"{name}:{number}: {line.strip()!r} {problem}", remedy)
    if len(times) < 2 or times[-1] == times[0]:
        raise DataError(f"{name}: {len(times)} arrivals are too few for a rate", "record more of them")
    return Recorded(tuple(time - times[0] for time in times), tuple(lengths))


def _against(times: Sequence[float], lengths: Sequence[int], fields: int) -> tuple[str, str] | None:
    """What is wrong with the last arrival of so many fields, and what to do; None: nothing."""
    if not math.isfinite(times[-1]):
        return "has no time that is a number", "write each time in seconds, as 0.0125"
    if len(times) > 1 and times[-1] < times[-2]:
        return "goes back in time", "sort arrivals by time"
    if fields > 2:
        return f"has {fields} fields", "write one arrival per line: its time and, maybe, its length"
    if len(lengths) not in (0, len(times)):
        what = "has no length" if fields == 1 else "has a length"
        return f"{what}, unlike those before it", "give all arrivals a length, or none"
    if lengths and lengths[-1] < 1:
        return f"has the length {lengths[-1]}", "give lengths of 1 at least, or none at all"
    return None


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
        if not self.served.any():
            return 0.0
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
    state = _State(services, workers, policy, arrivals, seed, cost)
    state.run()
    return state.result()


class _State:
    def __init__(
        self,
        services: Sequence[Service],
        workers: int,
        policy: BatchPolicy,
        arrivals: Arrivals,
        seed: int,
        cost: ServingCost,
    ) -> None:
        self._services, self._policy, self._arrivals, self._cost = services, policy, arrivals, cost
        # after the last one none comes
        self._at_s: list[float] = [*arrivals.at_s.tolist(), math.inf]
        self._shape: list[int] = arrivals.shape.tolist()
        self._slowness = Slowness(services, RandomState(seed))
        self._waiting = self._next = 0
        self._free_s = [-math.inf] * workers  # a heap of when workers are, or were, done
        self._queues: dict[int, deque[int]] = {}  # requests by shape, the oldest first; none is empty
        self._served: list[int] = []
        self._counts: list[int] = []  # of each batch; and when it ran
        self._start_s: list[float] = []
        self._end_s: list[float] = []
        self._busy_s = 0.0

    def run(self) -> None:
        at_s, free_s, queues = self._at_s, self._free_s, self._queues
        now_s = -math.inf
        while queues or at_s[self._next] < math.inf:
            now_s = max(now_s, free_s[0])
            if not queues:
                now_s = max(now_s, at_s[self._next])
            if at_s[self._next] <= now_s:
                self._admit(now_s)
            seen = [Waiting(len(queue), at_s[queue[0]]) for queue in queues.values()]
            step = decide(now_s, seen, self._policy)
            if isinstance(step, Wait):
                now_s = min(step.until_s, at_s[self._next])
            else:
                self._take(list(queues)[step.queue], step.count, now_s)

    def _admit(self, now_s: float) -> None:
        """Nothing has left since the last decision: who finds too many waiting is rejected."""
        index, at_s = self._next, self._at_s
        while at_s[index] <= now_s:
            if self._waiting < self._policy.max_waiting:
                shape = self._shape[index]
                if shape not in self._queues:
                    self._queues[shape] = deque()
                self._queues[shape].append(index)
                self._waiting += 1
            index += 1
        self._next = index

    def _take(self, shape: int, count: int, now_s: float) -> None:
        running = 1
        for free_s in self._free_s:
            running += free_s > now_s
        queue = self._queues[shape]
        self._served += [queue.popleft() for _ in range(count)]
        if not queue:
            del self._queues[shape]  # as the batcher's: a queue that comes again comes last
        self._waiting -= count
        slow = (self._slowness.at(now_s) for _ in range(count))
        seconds = added_ms(self._cost, count) / 1e3 + self._services[shape].takes_s(count, running, slow)
        heapreplace(self._free_s, now_s + seconds)
        self._busy_s += seconds
        self._counts.append(count)
        self._start_s.append(now_s)
        self._end_s.append(now_s + seconds)

    def result(self) -> Simulated:
        """What has become of the requests, by what batches they were in."""
        requests, counts = len(self._shape), np.asarray(self._counts, np.int64)
        start_s, end_s = np.full(requests, math.nan), np.full(requests, math.nan)
        batch = np.full(requests, -1, np.int64)
        served = np.asarray(self._served, np.int64)
        start_s[served] = np.repeat(self._start_s, counts)
        end_s[served] = np.repeat(self._end_s, counts)
        batch[served] = np.repeat(np.arange(len(counts)), counts)
        return Simulated(self._arrivals.at_s, start_s, end_s, batch, self._busy_s)
