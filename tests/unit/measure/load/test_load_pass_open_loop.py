"""The open loop in virtual time, against small reference simulations of queues."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from tests.support.scripted_device.device import Script, ScriptedDevice, ScriptedSession
from tests.support.scripted_runs import INPUTS, SHAPES, terms
from trtopt.device.api import Event
from trtopt.measure.load.arrivals import Load, arrivals_s
from trtopt.measure.load.load_pass import Bounds, OpenLoop
from trtopt.measure.loop.inference_stream import InferenceStream

TICK_MS = 1000 / 1024
"""Sums of these are exact in seconds: two things that happen at one time do so to the last bit."""

FOREVER = Bounds(window_s=0.0, drain_s=math.inf)


def opened(
    device: ScriptedDevice,
    arrivals: Sequence[float],
    contract: str = "isolated",
    streams: int = 1,
    bounds: Bounds = FOREVER,
) -> OpenLoop:
    """The loop after its run, with everything closed; its requests in the order of their arrival."""
    session = ScriptedSession(device)
    with ExitStack() as resources:
        resources.callback(session.close)
        inference_streams = []
        for _ in range(streams):
            inference_streams.append(InferenceStream(session, SHAPES, INPUTS, terms(contract)))
            resources.callback(inference_streams[-1].close)
        loop = OpenLoop(inference_streams, arrivals, bounds)
        loop.run()
    assert device.open == 0
    loop.served.sort(key=lambda one: one.index)
    return loop


def latencies_s(loop: OpenLoop) -> list[float]:
    return [one.query.end_s - one.arrival_s for one in loop.served]


def server(*compute_ms: float, enqueue_ms: float = 0.0, inference_streams: int = 1) -> ScriptedDevice:
    """A device whose first runs, one a lane, prepare it."""
    runs = [TICK_MS] * inference_streams + list(compute_ms)
    return ScriptedDevice(Script(compute_ms=runs, enqueue_ms=[enqueue_ms], h2d_ms=0.0, d2h_ms=0.0))


def reference(
    arrivals: Sequence[float], services: Sequence[float], inference_streams: int, depth: int
) -> list[float]:
    """Latencies of a queue in front of `lanes` servers with room for `depth` requests each, all in order."""
    ends: list[list[float]] = [[] for _ in range(inference_streams)]
    latencies, now = [], 0.0
    for arrival, service in zip(arrivals, services, strict=True):
        now = max(now, arrival)
        while min(sum(end > now for end in inference_stream) for inference_stream in ends) >= depth:
            now = min(end for inference_stream in ends for end in inference_stream if end > now)
        inference_stream = min(ends, key=lambda inference_stream: sum(end > now for end in inference_stream))
        inference_stream.append(max([now, *inference_stream]) + service)
        latencies.append(inference_stream[-1] - arrival)
    return latencies


@given(
    requests=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), min_size=1, max_size=30),
    inference_streams=st.integers(1, 3),
    contract=st.sampled_from([("isolated", 1), ("trtexec-11", 2)]),
)
def test_latencies_are_those_of_a_queue_before_parallel_servers(
    requests: list[tuple[int, int]], inference_streams: int, contract: tuple[str, int]
) -> None:
    tick_s = TICK_MS / 1e3
    arrivals = [sum(gap for gap, _ in requests[: index + 1]) * tick_s for index in range(len(requests))]
    services = [service * tick_s for _, service in requests]
    name, depth = contract
    loop = opened(
        server(*(s * 1e3 for s in services), inference_streams=inference_streams),
        arrivals,
        name,
        streams=inference_streams,
    )
    assert latencies_s(loop) == reference(arrivals, services, inference_streams, depth)
    assert [one.index for one in loop.served] == list(range(len(requests)))
    assert [one.lag_s for one in loop.served] == [0.0] * len(requests)
    assert loop.ended_by == "all requests were served"


def test_poisson_arrivals_at_one_server_wait_as_lindley_says() -> None:
    """W[n + 1] = max(0, W[n] + S - A[n]): an M/D/1 queue at 80 % of its capacity."""
    arrivals = arrivals_s(Load(800.0, "poisson"), 2.0, seed=5)
    loop = opened(server(1.0), arrivals)
    waits = [0.0]
    for earlier, later in pairwise(arrivals):
        waits.append(max(0.0, waits[-1] + 1e-3 - (later - earlier)))
    assert latencies_s(loop) == pytest.approx([wait + 1e-3 for wait in waits], abs=1e-12)
    assert max(waits) > 5e-3


def test_evenly_spaced_requests_below_capacity_never_wait() -> None:
    loop = opened(server(1.0), arrivals_s(Load(900.0), 1.0))
    assert len(loop.served) == 900
    assert latencies_s(loop) == pytest.approx([1e-3] * 900, abs=1e-12)
    assert loop.most_waiting == 0


def test_a_burst_waits_in_line() -> None:
    loop = opened(server(2.0), [0.0, 0.0, 0.0, 0.0, 0.001])
    assert latencies_s(loop) == pytest.approx([0.002, 0.004, 0.006, 0.008, 0.009])
    assert loop.most_waiting == 4


def test_an_idle_lane_is_taken_before_the_queue_of_a_busy_one() -> None:
    loop = opened(server(4.0, inference_streams=2), [0.0, 0.001, 0.002], "trtexec-11", streams=2)
    assert [one.inference_stream for one in loop.served] == [0, 1, 0]
    assert latencies_s(loop) == pytest.approx([0.004, 0.004, 0.006])


def test_a_request_that_comes_while_the_host_enqueues_waits_without_the_host_being_late() -> None:
    loop = opened(server(1.0, enqueue_ms=2.0, inference_streams=2), [0.0, 0.0005], streams=2)
    second = loop.served[1]
    assert second.query.start_s - loop.began_s == pytest.approx(0.002)
    assert second.lag_s == 0.0
    assert latencies_s(loop)[1] == pytest.approx(0.0045)


class Oversleeping(ScriptedDevice):
    """Its host wakes up 0.25 ms late whenever nothing is in flight."""

    def wait_any(self, events: Sequence[Event], until_s: float) -> None:
        super().wait_any(events, until_s if events else until_s + 0.25e-3)


def test_a_host_that_is_late_is_distinguished_and_its_lateness_counts() -> None:
    loop = opened(Oversleeping(Script(compute_ms=[1.0], enqueue_ms=[0.0])), [0.0, 0.010, 0.0105])
    assert [one.lag_s for one in loop.served] == pytest.approx([0.0, 0.25e-3, 0.0])
    assert latencies_s(loop) == pytest.approx([1e-3, 1.25e-3, 1.75e-3])


# ── bounds ──────────────────────────────────────────────────────────────────────────────────────────────


def test_an_overload_ends_in_time_with_what_could_be_served() -> None:
    """2,000 requests in 1 s at a server of 1,000/s, for which half a second more is waited."""
    arrivals = arrivals_s(Load(2000.0), 1.0)
    loop = opened(server(1.0), arrivals, bounds=Bounds(window_s=1.0, drain_s=0.5005))
    assert loop.ended_by == "requests were still waiting 0.5005 s after the arrivals' end"
    assert (loop.arrived, len(loop.served)) == (2000, 1501)
    assert loop.window_s == 1.0
    assert loop.most_waiting == 1000
    assert latencies_s(loop) == pytest.approx([1e-3 + 0.5e-3 * n for n in range(1501)], abs=1e-9)


def test_a_goal_that_is_missed_for_certain_ends_the_run() -> None:
    bounds = Bounds(window_s=1.0, drain_s=1.0, late_ms=2.25, max_late=3)
    loop = opened(server(1.0), arrivals_s(Load(2000.0), 1.0), bounds=bounds)
    assert loop.ended_by == "4 requests took longer than 2.25 ms: the goal is missed"
    assert sum(latency > 2.25e-3 for latency in latencies_s(loop)) == 4
    assert loop.arrived < 2000
    assert loop.window_s == pytest.approx(loop.served[-1].query.end_s - loop.began_s)


def test_what_is_in_flight_at_the_end_still_finishes() -> None:
    bounds = Bounds(window_s=0.0, drain_s=0.0015)
    loop = opened(server(1.0, inference_streams=2), [0.0] * 8, "trtexec-11", streams=2, bounds=bounds)
    assert len(loop.served) == 6
    assert [one.inference_stream for one in loop.served] == [0, 1, 0, 1, 0, 1]
    assert latencies_s(loop) == pytest.approx([0.001, 0.001, 0.002, 0.002, 0.003, 0.003])
