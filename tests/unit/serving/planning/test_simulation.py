"""The batcher simulated: by hand, against queueing theory, and what holds of every run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.random import RandomState
from numpy.typing import NDArray

from trtopt.errors import DataError, UsageError
from trtopt.records import BatchPolicy, ServingCost
from trtopt.serving.planning.setups import Curve, Service
from trtopt.serving.planning.simulation import (
    Arrivals,
    Process,
    Recorded,
    Simulated,
    arrivals_at,
    lengths_of,
    parse_process,
    parse_recorded,
    simulate,
)

RECORDED = Recorded((0.0, 1.0, 1.5, 4.0), (10, 20, 30, 40))


@pytest.mark.parametrize("text", ["poisson", "constant"])
def test_processes_are_named(text: str) -> None:
    assert parse_process(text) == text


@pytest.mark.parametrize("text", ["weekly", "poisson:2", "bursty:2:0.1"])
def test_other_processes_are_refused_with_the_reason(text: str) -> None:
    with pytest.raises(UsageError, match="neither a kind of arrivals nor a file"):
        parse_process(text)


def test_recorded_arrivals_count_from_the_first() -> None:
    assert parse_recorded("# seconds\n7.5\n\n8  # a comment\n8\n", "log") == Recorded((0.0, 0.5, 0.5))
    assert parse_recorded("0,128\n0.5 384\n", "log") == Recorded((0.0, 0.5), (128, 384))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0\nsoon\n", "log:2: 'soon' is no arrival"),
        ("0\n1,2.5\n", "log:2: '1,2.5' is no arrival"),
        ("{" * 1000, f"log:1: '{'{' * 60}' is no arrival"),
        ("0\n2\n1\n", "log:3: '1' is no arrival"),
        ("0,1\n1\n", "log:2: '1' is no arrival"),
        ("0\n1,1\n", "log:2: '1,1' is no arrival"),
        ("0,1\n1,0\n", "log:2: '1,0' is no arrival"),
        ("1,2,3\n", "log:1: '1,2,3' is no arrival"),
        ("0\nnan\n", "log:2: 'nan' is no arrival"),
        ("inf\n1\n", "log:1: 'inf' is no arrival"),
        ("", "log: 0 arrivals are too few for a rate"),
        ("3\n3\n", "log: 2 arrivals are too few for a rate"),
    ],
)
def test_a_record_that_is_none_is_refused_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        parse_recorded(text, "log")


@pytest.mark.parametrize("process", ["poisson", "constant", RECORDED])
def test_every_process_keeps_the_rate_and_begins_at_zero(process: Process) -> None:
    """Of 200,000 arrivals."""
    at_s = arrivals_at(process, 500.0, 200_000, seed=3)
    assert at_s[0] == 0
    assert np.all(np.diff(at_s) >= 0)
    assert len(at_s) / at_s[-1] == pytest.approx(500, rel=0.01)


def test_a_record_is_stretched_to_the_rate_and_repeated() -> None:
    assert RECORDED.rate == 0.75
    once = arrivals_at(RECORDED, 1.5, 4, seed=9)
    assert once == pytest.approx([0.0, 0.5, 0.75, 2.0])
    twice = arrivals_at(RECORDED, 0.75, 8, seed=9)
    assert np.diff(twice) == pytest.approx([1.0, 0.5, 2.5, 1 / 0.75, 1.0, 0.5, 2.5])


def test_lengths_stay_with_their_arrivals_however_the_record_is_begun() -> None:
    part, lengths = (arrivals_at(RECORDED, 0.75, 3, seed=1), lengths_of(RECORDED, {}, 3, seed=1))
    gap_before = {10: 1 / 0.75, 20: 1.0, 30: 0.5, 40: 2.5}
    assert np.diff(part) == pytest.approx([gap_before[length] for length in lengths[1:].tolist()])


def test_lengths_are_drawn_by_their_shares() -> None:
    drawn = lengths_of("poisson", {384: 1.0, 128: 3.0}, 10_000, seed=0)
    assert set(drawn.tolist()) == {128, 384}
    assert np.mean(drawn == 128) == pytest.approx(0.75, abs=0.02)


PATIENT = 10**9


def fixed(batch: int, *latency_ms: float, among: dict[int, float] | None = None) -> Curve:
    """An engine for one batch size; `among` tells its latency by how many run at a time."""
    levels = {1: {batch: latency_ms}} | {many: {batch: [ms]} for many, ms in (among or {}).items()}
    return Curve(batch, batch, levels)


def policy(max_batch: int, delay_ms: float = 0.0, max_waiting: int = PATIENT) -> BatchPolicy:
    return BatchPolicy(max_batch=max_batch, max_delay_ms=delay_ms, max_waiting=max_waiting)


def times_ms(run: Simulated) -> list[tuple[float, float]]:
    """When each request's batch began and ended."""
    return [(float(a), float(b)) for a, b in zip(run.start_s * 1e3, run.end_s * 1e3, strict=True)]


def all_alike(at_s: Sequence[float] | NDArray[np.float64]) -> Arrivals:
    return Arrivals(np.asarray(at_s, np.float64), np.zeros(len(at_s), np.int64))


def at_ms(*times: float) -> Arrivals:
    return all_alike([time / 1e3 for time in times])


# ── by hand ─────────────────────────────────────────────────────────────────────────────────────────────


def test_requests_wait_for_more_then_run_on_the_engine_that_is_cheapest() -> None:
    """Three share the batch of four, which takes 2 ms where three alone would take 3; four fill the next
    at once; the one left over waits for its delay, in vain."""
    service = Service([fixed(1, 1.0), fixed(4, 2.0)])
    run = simulate([service], 1, policy(4, 3.0), at_ms(0, 1, 2, 5, 5, 5, 5, 5))
    expected = [(3.0, 5.0)] * 3 + [(5.0, 7.0)] * 4 + [(8.0, 9.0)]
    assert times_ms(run) == [pytest.approx(pair) for pair in expected]
    assert run.batch.tolist() == [0, 0, 0, 1, 1, 1, 1, 2]
    assert run.latencies_ms == pytest.approx([5, 4, 3, 2, 2, 2, 2, 4])
    assert run.throughput == pytest.approx(8 / 0.009)
    assert run.busy_s == pytest.approx(0.005)


def test_without_a_delay_a_batch_is_what_has_gathered_while_the_worker_was_busy() -> None:
    service = Service([fixed(1, 4.0), fixed(8, 4.0)])
    run = simulate([service], 1, policy(8), at_ms(0, 1, 2, 3, 6))
    assert times_ms(run) == [pytest.approx(pair) for pair in [(0, 4)] + [(4, 8)] * 3 + [(8, 12)]]


def test_a_second_worker_takes_up_what_the_first_has_no_time_for_and_both_slow_down() -> None:
    service = Service([fixed(1, 4.0, among={2: 6.0})])
    run = simulate([service], 2, policy(1), at_ms(0, 1, 2))
    assert times_ms(run) == [pytest.approx(pair) for pair in [(0, 4), (1, 7), (4, 10)]]


def test_who_finds_as_many_waiting_as_may_wait_is_rejected() -> None:
    service = Service([fixed(1, 10.0)])
    run = simulate([service], 1, policy(1, max_waiting=2), at_ms(0, 1, 2, 3, 11))
    assert run.batch.tolist() == [0, 1, 2, -1, 3]
    assert np.isfinite(run.latencies_ms).tolist() == [True, True, True, False, True]
    assert run.throughput == pytest.approx(4 / 0.040)


def test_requests_of_unlike_shapes_share_no_batch_and_the_oldest_queue_goes_first() -> None:
    short, long = Service([fixed(2, 1.0)]), Service([fixed(2, 5.0)])
    arrivals = Arrivals(np.array([0.0, 0.001, 0.002, 0.003]), np.array([1, 0, 1, 0]))
    run = simulate([short, long], 1, policy(2, 10.0), arrivals)
    assert run.batch.tolist() == [0, 1, 0, 1]
    assert times_ms(run) == [pytest.approx(pair) for pair in [(2, 7), (7, 8), (2, 7), (7, 8)]]


def test_serving_costs_time_for_each_batch_and_each_request() -> None:
    cost = ServingCost(batch_ms=0.5, request_ms=0.25)
    run = simulate([Service([fixed(4, 2.0)])], 1, policy(4), at_ms(0, 0, 0), cost=cost)
    assert times_ms(run) == [pytest.approx((0, 3.25))] * 3


# ── by chance ───────────────────────────────────────────────────────────────────────────────────────────


def test_batches_between_measured_ones_are_scaled_from_the_next_one_up() -> None:
    dynamic = Curve(1, 8, {1: {1: [1.0], 8: [8.0, 8.0, 16.0]}})
    assert Service([dynamic]).typical_ms(4) == pytest.approx((8 + 8 + 16) / 3 / 2)


def test_the_same_seed_draws_the_same_times_and_another_seed_others() -> None:
    service = Service([fixed(1, *range(1, 20))])
    first, again, other = (simulate([service], 1, policy(1), at_ms(*range(50)), seed) for seed in (1, 1, 2))
    assert np.array_equal(first.end_s, again.end_s)
    assert not np.array_equal(first.end_s, other.end_s)


def in_spells(count: int, usual_ms: float) -> list[float]:
    """Every 40th to 50th query takes three times as long."""
    return [usual_ms * (3 if query % 50 >= 40 else 1) for query in range(count)]


def test_slow_spells_are_slow_for_all_that_begins_in_them() -> None:
    """Ten queries of 3 ms every 70 ms, the next one slow for 28; drawn apart, slow ones would seldom meet."""
    service = Service([fixed(1, *in_spells(1000, 1.0))])
    run = simulate([service], 1, policy(1), at_ms(*np.arange(0, 2000, 3.7)))
    took_ms = np.round((run.end_s - run.start_s) * 1e3, 6)
    assert set(took_ms) == {1, 3}
    runs = [len(list(same)) for slow, same in groupby(took_ms == 3) if slow][1:-1]
    assert set(runs) <= {7, 8}
    assert np.mean(took_ms == 3) == pytest.approx(28 / 70, abs=0.03)


def test_queues_that_spells_make_are_served_by_other_engines_as_slowly() -> None:
    """The batch of eight was measured in a quiet time: it takes what the batch of one lost in its spell."""
    service = Service([fixed(1, *in_spells(1000, 1.0)), fixed(8, *[2.0] * 500)])
    times = {round(service.takes_s(8, 1, [factor]) * 1e3, 6) for factor in (1.0, 1.2, 3.0, 100.0)}
    assert times == {2.0, 2.4, 4.0}


def test_one_slow_query_is_met_as_often_as_it_began_not_as_long_as_it_lasted() -> None:
    measured = [9.0 if RandomState(query).random_sample() < 0.1 else 1.0 for query in range(2000)]
    run = simulate([Service([fixed(1, *measured)])], 1, policy(1), at_ms(*np.arange(0, 100_000, 10.3)))
    slow = np.round((run.end_s - run.start_s) * 1e3) == 9
    assert np.mean(slow) == pytest.approx(np.mean(np.array(measured) == 9), abs=0.015)


def test_a_resampled_curve_holds_values_that_were_measured_as_many() -> None:
    curve = Curve(1, 8, {1: {8: [float(value) for value in range(40)]}, 2: {8: [50.0]}})
    drawn = curve.resampled(RandomState(0))
    assert (drawn.low, drawn.high, drawn.samples_ms[2]) == (1, 8, {8: (50.0,)})
    assert len(drawn.samples_ms[1][8]) == 40
    assert set(drawn.samples_ms[1][8]) < set(range(40))
    steps = np.diff(drawn.samples_ms[1][8])
    assert (steps == 1).sum() >= 32  # in seven blocks


# ── against queueing theory ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("utilisation", "service_ms"), [(0.3, (1.0,)), (0.8, (1.0,)), (0.6, (0.5, 0.75, 1.75))]
)
def test_waiting_times_are_those_of_pollaczek_and_khinchine(
    utilisation: float, service_ms: Sequence[float]
) -> None:
    """Wq = λ·E[S²] / (2·(1 − ρ)) for Poisson arrivals at one server that takes one at a time.

    Within four standard errors of 25 independent runs' mean: of 100,000 correct simulations six would fail.
    That the standard error itself is within 4 % of the figure keeps the test from being loose.
    """
    mean, square = np.mean(service_ms), np.mean(np.square(service_ms))
    rate = utilisation / mean
    expected_ms = rate * square / (2 * (1 - utilisation))
    measured = RandomState(7).permutation(np.repeat(service_ms, 3000))  # a replay is as it was measured
    service = Service([fixed(1, *measured.tolist())])
    waits = []
    for seed in range(25):
        at = np.cumsum(RandomState(seed).exponential(1 / rate, 5000)) / 1e3
        run = simulate([service], 1, policy(1), all_alike(at), seed + 1000)
        waits.append(float(np.mean(run.start_s - run.arrival_s)[()] * 1e3))
    error = np.std(waits, ddof=1) / math.sqrt(len(waits))
    assert error < 0.04 * expected_ms
    assert abs(np.mean(waits) - expected_ms) < 4 * error


# ── what holds of every run ─────────────────────────────────────────────────────────────────────────────

SERVICES = (
    Service([fixed(1, 1.0, 1.5, among={2: 2.0}), fixed(4, 2.0)]),
    Service([Curve(1, 8, {1: {1: [0.5], 8: [3.0, 4.0]}})]),
)
ARRIVALS = st.lists(st.tuples(st.floats(0, 0.05), st.sampled_from([0, 1])), min_size=1, max_size=60).map(
    sorted
)


@given(
    arrivals=ARRIVALS,
    workers=st.integers(1, 3),
    max_batch=st.integers(1, 9),
    delay_ms=st.sampled_from([0.0, 0.3, 5.0]),
    max_waiting=st.sampled_from([2, 10, PATIENT]),
)
def test_every_request_is_served_once_in_order_in_batches_that_keep_the_policy(
    arrivals: list[tuple[float, int]], workers: int, max_batch: int, delay_ms: float, max_waiting: int
) -> None:
    at, shape = (np.array(column) for column in zip(*arrivals, strict=True))
    run = simulate(SERVICES, workers, policy(max_batch, delay_ms, max_waiting), Arrivals(at, shape))
    assert run.served.all() or max_waiting < len(at)
    assert np.array_equal(np.isnan(run.end_s), ~run.served)
    assert np.all(run.start_s[run.served] >= at[run.served])
    assert np.all(run.end_s[run.served] > run.start_s[run.served])
    for index in (0, 1):
        own = run.served & (shape == index)
        assert np.all(np.diff(run.start_s[own]) >= 0)
        assert np.all(np.diff(run.batch[own]) >= 0)
    for batch in range(run.batch.max() + 1):
        members = run.batch == batch
        start_s, end_s = run.start_s[members], run.end_s[members]
        assert 1 <= members.sum() <= max_batch
        assert len(set(shape[members])) == len(set(start_s)) == len(set(end_s)) == 1
        assert members.sum() == max_batch or start_s[0] >= at[members][0] + delay_ms / 1e3
        others = set(run.batch[(run.start_s <= start_s[0]) & (run.end_s > start_s[0])])
        assert len(others) <= workers
