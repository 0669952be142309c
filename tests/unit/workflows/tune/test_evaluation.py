"""What each objective minimises, on blocks whose latencies are known."""

from __future__ import annotations

from tests.support.interleaved_runs import turns
from trtopt.workflows.tune.evaluation import cost_blocks
from trtopt.workflows.tune.setup import MEASURES

BLOCKS = [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]]


def test_a_latency_is_each_querys_and_a_p99_each_blocks() -> None:
    taken = turns("incumbent", BLOCKS)
    assert cost_blocks(MEASURES["latency"], taken, 8) == BLOCKS
    p99 = cost_blocks(MEASURES["p99"], taken, 8)
    assert [len(block) for block in p99] == [1, 1]
    assert 2.9 < p99[0][0] <= 3.0
    assert p99[1] == [2.0]
    assert MEASURES["p99"].block_queries == 100


def test_a_throughput_is_time_per_sample_so_that_batch_sizes_compare() -> None:
    taken = turns("incumbent", BLOCKS)
    assert cost_blocks(MEASURES["throughput"], taken, 8) == [[0.25], [0.25]]
    assert cost_blocks(MEASURES["throughput"], taken, 32) == [[0.0625], [0.0625]]
