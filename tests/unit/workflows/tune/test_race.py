"""What each objective minimises, on blocks whose latencies are known."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.interleaved_runs import run, turns
from trtopt.records import ClockReading, InterleavedRun, Samples
from trtopt.workflows.tune.race import MEASURES, capacity, cost_blocks, joules, measure_for, typical

BLOCKS = [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]]


def test_a_latency_is_each_querys_and_a_p99_each_blocks() -> None:
    taken = turns("incumbent", BLOCKS)
    assert cost_blocks(MEASURES["latency"], taken, 8) == BLOCKS
    p99 = cost_blocks(MEASURES["p99"], taken, 8)
    assert [len(block) for block in p99] == [1, 1]
    assert 2.9 < p99[0][0] <= 3.0
    assert p99[1] == [2.0]


def test_a_throughput_is_time_per_sample_so_that_batch_sizes_compare() -> None:
    taken = turns("incumbent", BLOCKS)
    assert cost_blocks(MEASURES["throughput"], taken, 8) == [[0.25], [0.25]]
    assert cost_blocks(MEASURES["throughput"], taken, 32) == [[0.0625], [0.0625]]
    assert typical([[1.0], [3.0], [2.0]]) == 2.0


def served(latency_ms: float, capacity_per_s: float) -> Samples:
    """100 requests in a second, of which the engine serves so many a second, one after another."""
    starts = [10.0 * index for index in range(100)]
    ends: list[float] = []
    for start in starts:
        ends.append(max(start + latency_ms, (ends[-1] if ends else 0.0) + 1e3 / capacity_per_s))
    taken = turns("incumbent", [[1.0]]).blocks[0]
    return msgspec.structs.replace(taken, start_ms=starts, end_ms=ends)


def test_a_rate_that_is_served_has_no_bound_and_one_that_is_not_has_the_capacity() -> None:
    assert capacity([served(3.0, 200.0)]) is None
    assert capacity([served(3.0, 50.0)]) == pytest.approx(50, rel=0.02)
    assert measure_for("p99", 200.0).unit == "ms (p99 at 200/s)"
    assert measure_for("p99", None).block_queries == 100


def powered(**readings: list[float]) -> InterleavedRun:
    """Two subjects in two rounds, the second round in reverse; a turn takes 10 ms."""
    made = run({"incumbent": BLOCKS, "candidate": BLOCKS})
    clocks = tuple(
        ClockReading(at_ms=10.0 * index, **{name: values[index] for name, values in readings.items()})
        for index in range(5)
    )
    return msgspec.structs.replace(made, clocks=clocks, order=(0, 1, 1, 0))


def test_energy_is_that_of_the_subjects_own_turns() -> None:
    """The incumbent draws 100 W, the candidate 50 W; a query takes 2 ms and has 4 samples."""
    counted = powered(energy_j=[0.0, 1.0, 1.5, 2.0, 3.0])
    assert joules(counted, 0, 4) == [[pytest.approx(0.05)], [pytest.approx(0.05)]]
    assert joules(counted, 1, 4) == [[pytest.approx(0.025)], [pytest.approx(0.025)]]
    read = powered(power_w=[100.0, 100.0, 50.0, 50.0, 100.0])
    assert joules(read, 1, 4) == [[pytest.approx(0.0375)], [pytest.approx(0.025)]]


def test_a_device_that_reports_neither_has_no_energy() -> None:
    assert joules(powered(), 0, 4) is None
