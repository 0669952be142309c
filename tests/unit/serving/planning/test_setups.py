"""What could serve, and what can be said of it without a simulation."""

import math
from dataclasses import replace

import pytest

from tests.support.engines import MIB, engine
from trtopt.records import BatchPolicy, ServingCost
from trtopt.serving.planning.setups import Fleet, Setup, fleets, worker_counts

ONE, EIGHT = engine(1, 1.0, among_two=1.5), engine(8, 4.0, among_two=6.0)
DYNAMIC = engine(8, {1: 1.0, 4: 2.0, 8: 4.0})


def setup(fleet: Fleet, workers: int = 1, max_batch: int = 8) -> Setup:
    return Setup(fleet, workers, BatchPolicy(max_batch=max_batch, max_delay_ms=0.0))


def test_sets_of_engines_are_of_one_family() -> None:
    found = [fleet.name for fleet in fleets([ONE, EIGHT, engine(8, 3.0, family="int8")], 2)]
    assert found == ["fp16 batch1", "fp16 batch8", "fp16 batch1 + fp16 batch8", "int8 batch8"]


def test_workers_are_as_many_as_every_engine_was_measured_with() -> None:
    assert worker_counts(Fleet([ONE, EIGHT])) == [1, 2]
    assert worker_counts(Fleet([ONE, engine(8, 4.0)])) == [1]


def test_the_largest_batch_leaves_no_fixed_engine_out() -> None:
    assert Fleet([ONE, EIGHT]).largest_batches() == [8]
    assert Fleet([DYNAMIC]).largest_batches() == [1, 4, 8]
    assert Fleet([engine(4, 1.5), DYNAMIC]).largest_batches() == [4, 8]


def test_an_engine_that_is_never_the_cheapest_is_never_used() -> None:
    assert Fleet([ONE, EIGHT]).batches_used(8) == [{1}, {8}]
    assert Fleet([engine(1, 1.0), engine(8, 0.9)]).batches_used(8) == [set(), {8}]
    assert Fleet([DYNAMIC]).batches_used(3) == [{1, 2, 3}]


def test_memory_is_a_context_for_each_worker_and_batch_size_and_the_weights_once() -> None:
    assert setup(Fleet([ONE, EIGHT]), workers=2).memory_bytes() == 2 * (100 + 10) * MIB
    assert setup(Fleet([DYNAMIC]), max_batch=4).memory_bytes() == (100 + 3 * 10) * MIB
    assert setup(Fleet([ONE, engine(8, 4.0, memory_mib=None)])).memory_bytes() is None


def test_capacity_is_that_of_the_best_batch_with_all_workers_busy() -> None:
    assert setup(Fleet([ONE, EIGHT])).capacity([1.0]) == pytest.approx(8 / 0.004)
    assert setup(Fleet([ONE, EIGHT]), workers=2).capacity([1.0]) == pytest.approx(2 * 8 / 0.006)
    costly = replace(setup(Fleet([ONE, EIGHT])), cost=ServingCost(batch_ms=0.4, request_ms=0.2))
    assert costly.capacity([1.0]) == pytest.approx(8 / 0.006)


def test_capacity_over_lengths_is_that_of_the_mixture() -> None:
    fleet = Fleet([engine(8, 2.0, length=128), engine(8, 8.0, length=384)])
    assert fleet.lengths == (128, 384)
    assert [fleet.bucket(length) for length in (1, 128, 129, 385)] == [0, 0, 1, None]
    assert setup(fleet).capacity([0.75, 0.25]) == pytest.approx(8 / (0.75 * 0.002 + 0.25 * 0.008))


def test_a_rough_latency_is_that_of_the_smallest_batch_that_keeps_up() -> None:
    assert setup(Fleet([ONE, EIGHT])).expected_ms(500, [1.0]) == pytest.approx(1.5)
    assert setup(Fleet([ONE, EIGHT])).expected_ms(1500, [1.0]) == pytest.approx(6.0)
    assert setup(Fleet([ONE, EIGHT])).expected_ms(3000, [1.0]) == math.inf
