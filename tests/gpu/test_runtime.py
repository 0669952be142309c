"""The runtime on a real GPU: graphs, bounded memory, batches."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import trtopt
from tests.support.gpu_digits import DIGITS, IMAGES, SOURCES, close
from trtopt.serving import BatchPolicy, DynamicBatcher, EnginePool

PATIENCE_S = 60.0


@pytest.fixture
def pool(built: Path, binding: str) -> Iterator[EnginePool]:
    with EnginePool.open(built, workers=2) as opened:
        yield opened


@pytest.mark.parametrize("graphs", [True, False])
def test_any_number_of_rows_is_answered_row_by_row(
    built: Path, binding: str, right: np.ndarray, graphs: bool
) -> None:
    with EnginePool.open(built, graphs=graphs) as pool:
        for _ in range(3):  # plain, captured, replayed
            for count in (1, 2, 8, 9, 30):
                start = 7 * count
                outputs = pool.run(IMAGES[start : start + count])
                assert close(outputs["logits"], right[start : start + count])
        usage = pool.usage()
        assert usage.graph_refused is None
        assert usage.graphs == (2 if graphs else 0)  # batches 1 and 8
        assert usage.prepared == 2


def test_memory_stays_within_its_bound(built: Path, binding: str, right: np.ndarray) -> None:
    with EnginePool.open(built, bound_bytes=1) as pool:
        for _ in range(3):
            for count in (1, 8):
                assert close(pool.run(IMAGES[:count])["logits"], right[:count])
                assert pool.usage().prepared == 1
        assert pool.usage().evicted == 5


def test_two_workers_share_a_dynamic_engine(
    tmp_path_factory: pytest.TempPathFactory, binding: str, right: np.ndarray
) -> None:
    folder = tmp_path_factory.mktemp("gpu") / "dynamic"
    trtopt.build(DIGITS, folder, batch=(1, 4, 16), dynamic=True, backend="tensorrt", tactic_sources=SOURCES)

    def ask(number: int) -> bool:
        count = 1 + number % 20
        return close(pool.run(IMAGES[number : number + count])["logits"], right[number : number + count])

    with EnginePool.open(folder, workers=2) as pool, ThreadPoolExecutor(4) as threads:
        assert all(threads.map(ask, range(400)))
        assert pool.usage().replaced == 0


def test_many_requests_share_batches_and_each_has_its_own_answer(pool: EnginePool, right: np.ndarray) -> None:
    policy = BatchPolicy(max_batch=8, max_delay_ms=1.0, max_waiting=10_000)
    with DynamicBatcher(pool, policy) as batcher:
        futures = [batcher.submit(IMAGES[number % 540]) for number in range(5000)]
        for number, future in enumerate(futures):
            assert close(future.result(PATIENCE_S)["logits"], right[number % 540])
        told = batcher.statistics()
    assert (told.answered, told.failed) == (5000, 0)
    assert max(told.batch_sizes, key=lambda size: told.batch_sizes[size]) == 8
    assert pool.usage().graphs > 0
