"""The open loop: requests arrive by plan, wait if they must, and are served in order.

One host thread does all: it sees arrivals become due, hands the oldest waiting request to a free slot of the
least busy stream, and polls the device for what has finished. It never waits for a query while it could hand
over another one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from trtopt.device.api import Device
from trtopt.measure.loop.inference_stream import InferenceStream, InFlightQuery, Query


@dataclass(frozen=True)
class Bounds:
    """What ends a run before all of its requests have been served, so that an overload stays bounded.

    Requests arrive for `window_s`; those still waiting `drain_s` later are given up. The
    run also ends once more than `max_late` have taken longer than `late_ms`.
    """

    window_s: float
    drain_s: float
    late_ms: float = math.inf
    max_late: int = 0


@dataclass(frozen=True)
class Served:
    """One request that has been served, by its index among the arrivals; `ready_s` as in `_Flight`."""

    index: int
    arrival_s: float
    ready_s: float
    inference_stream: int
    query: Query

    @property
    def lag_s(self) -> float:
        """How late the host handed it over although nothing was in the way."""
        return self.query.start_s - max(self.arrival_s, self.ready_s)


@dataclass(frozen=True)
class _Flight:
    """A request that has been handed over; the host was busy, or every slot was, until `ready_s`."""

    index: int
    slot: InFlightQuery
    ready_s: float


class OpenLoop:
    """Serves requests that arrive at the times `arrivals_s` after `run` is called.

    What has been served so far is there whatever becomes of the device.
    """

    def __init__(
        self,
        device: Device,
        inference_streams: Sequence[InferenceStream],
        arrivals_s: Sequence[float],
        bounds: Bounds,
    ):
        self._device, self._inference_streams = device, inference_streams
        self._arrivals, self._bounds = arrivals_s, bounds
        self._flying: list[deque[_Flight]] = [deque() for _ in inference_streams]
        self._taken = self._late = 0
        self._ready_s = self._admitted_s = math.nan
        self.began_s = math.nan
        self.arrived = 0
        self.most_waiting = 0
        self.served: list[Served] = []
        self.ended_by = ""

    def run(self) -> None:
        """Serve them all, or until a bound is met; then what is in flight finishes."""
        self.began_s = self._ready_s = self._device.now()
        while True:
            self._collect()
            if not self.ended_by:
                self._admit()
                self.ended_by = self._evaluate()
            if self.ended_by and not any(self._flying):
                return
            inference_stream = self._free_stream()
            if inference_stream is not None and not self.ended_by and self._taken < self.arrived:
                self._hand_over(inference_stream)
            else:
                heads = [flying[0].slot.completion for flying in self._flying if flying]
                self._device.wait_any(heads, self._wake_s())

    @property
    def window_s(self) -> float:
        """For how long requests were let in."""
        return self._bounds.window_s if self.arrived == len(self._arrivals) else self._admitted_s

    def _admit(self) -> None:
        now, arrivals = self._device.now(), self._arrivals
        self._admitted_s = now - self.began_s
        while self.arrived < len(arrivals) and self.began_s + arrivals[self.arrived] <= now:
            self.arrived += 1
        free = sum(len(inference_stream.slots) for inference_stream in self._inference_streams) - sum(
            map(len, self._flying)
        )
        self.most_waiting = max(self.most_waiting, self.arrived - self._taken - free)

    def _collect(self) -> None:
        """Work of one stream finishes in the order in which it was handed over."""
        for inference_stream, flying in enumerate(self._flying):
            while flying and flying[0].slot.completion.reached():
                flight = flying.popleft()
                arrival_s = self.began_s + self._arrivals[flight.index]
                query = flight.slot.finish()
                self.served.append(Served(flight.index, arrival_s, flight.ready_s, inference_stream, query))
                self._late += (query.end_s - arrival_s) * 1e3 > self._bounds.late_ms
                self._ready_s = self._device.now()

    def _evaluate(self) -> str:
        """Why the run ends now; empty if it continues."""
        bounds = self._bounds
        if self._taken == len(self._arrivals):
            return "all requests were served"
        if self._device.now() >= self.began_s + bounds.window_s + bounds.drain_s:
            return f"requests were still waiting {bounds.drain_s:g} s after the arrivals' end"
        if self._late > bounds.max_late:
            return f"{self._late} requests took longer than {bounds.late_ms:g} ms: the goal is missed"
        return ""

    def _free_stream(self) -> int | None:
        """An idle stream before one with a queue: a request must not wait behind another without need."""
        free = [
            index
            for index, inference_stream in enumerate(self._inference_streams)
            if len(self._flying[index]) < len(inference_stream.slots)
        ]
        return min(free, key=lambda index: len(self._flying[index]), default=None)

    def _hand_over(self, inference_stream: int) -> None:
        slot = next(slot for slot in self._inference_streams[inference_stream].slots if not slot.busy)
        self._flying[inference_stream].append(_Flight(self._taken, slot, self._ready_s))
        slot.start()
        self._taken += 1
        self._ready_s = self._device.now()

    def _wake_s(self) -> float:
        """The next arrival, or the time at which waiting requests are given up."""
        if self.ended_by:
            return math.inf
        if self.arrived < len(self._arrivals):
            return self.began_s + self._arrivals[self.arrived]
        return self.began_s + self._bounds.window_s + self._bounds.drain_s
