"""What is made of batches that were seen."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.support.serving_pools import device, pool_on
from trtopt.records import BatchPolicy
from trtopt.serving.batch_trace import Seen, Took, TracedBatcher, batches_and_wake_times

SAMPLE = {"x": np.zeros(4, np.float32)}


def of_ms(*seen: tuple[int, float, float, float], workers: int = 1) -> tuple[list[Took], list[float]]:
    """Requests, and milliseconds of being due, of the begin and of the end; workers in turn."""
    batches = [
        Seen(0, requests, *(ms / 1e3 for ms in times), index % workers)
        for index, (requests, *times) in enumerate(seen)
    ]
    return batches_and_wake_times(batches, workers)


def test_batches_are_reported_in_the_order_of_their_begins() -> None:
    batches, _ = of_ms((2, 5, 6, 9), (1, 0, 1, 3))
    assert [(one.requests, one.running) for one in batches] == [(1, 1), (2, 1)]
    assert [one.ms for one in batches] == pytest.approx([2, 3])


def test_who_is_due_while_all_are_busy_waits_for_no_waking() -> None:
    _, wake_ms = of_ms((1, 0, 1, 5), (1, 2, 5, 9), (1, 12, 12.5, 14))
    assert wake_ms == pytest.approx([1, 0.5])


def test_a_worker_is_at_a_batch_until_it_begins_the_next_if_that_is_due() -> None:
    batches, _ = of_ms((1, 0, 1, 5), (1, 2, 5.5, 9), (1, 9.5, 10, 11))
    assert [one.ms for one in batches] == pytest.approx([4.5, 3.5, 1])
    batches, _ = of_ms((1, 0, 1, 5), (1, 0, 1, 4), (1, 2, 5.5, 9), (1, 4.5, 4.75, 9), workers=2)
    assert sorted(one.ms for one in batches) == pytest.approx([3, 3.5, 4.25, 4.5])


def test_who_is_due_while_the_worker_wakes_for_another_waits_for_that_batch() -> None:
    _, wake_ms = of_ms((1, 0, 1, 5), (1, 0.5, 5, 9))
    assert wake_ms == pytest.approx([1])


def test_with_a_worker_left_somebody_was_asleep() -> None:
    batches, wake_ms = of_ms(
        (1, 0, 1, 5), (1, 2, 2.5, 9), (1, 3, 5, 6), workers=2
    )  # the third finds both busy
    assert [one.running for one in batches] == [1, 2, 2]
    assert wake_ms == pytest.approx([1, 0.5])


def test_a_batch_that_is_begun_before_its_time_woke_no_one() -> None:
    batches, wake_ms = of_ms((1, 5, 2, 3))
    assert [one.ms for one in batches] == pytest.approx([1])
    assert wake_ms == []


def test_every_batch_is_seen_with_its_kind() -> None:
    with pool_on(device()) as pool:
        key = pool.catalogue.sample(SAMPLE).key
        with TracedBatcher(pool, {key: 3}, BatchPolicy(max_batch=8, max_delay_ms=0.0)) as batcher:
            for _ in range(5):
                batcher.submit(SAMPLE).result()
            since_s = time.perf_counter()
            for _ in range(20):
                batcher.submit(SAMPLE).result()
        batches, wake_ms = batcher.trace(since_s=since_s)
    assert [(one.bucket, one.requests, one.running) for one in batches] == [(3, 1, 1)] * 20
    assert 0 < len(wake_ms) <= 20  # whoever answers may be held up before it is done
    assert min(one.ms for one in batches) > 0 < min(wake_ms)


@pytest.mark.parametrize(("requests", "after_s"), [(1, 0.05), (2, 0.0)])
def test_a_batch_is_due_once_its_delay_is_over_or_it_is_full(requests: int, after_s: float) -> None:
    seen: list[Seen] = []
    with pool_on(device()) as pool:
        key = pool.catalogue.sample(SAMPLE).key
        batcher = TracedBatcher(pool, {key: 0}, BatchPolicy(max_batch=2, max_delay_ms=50.0))
        with batcher:
            began_s = time.perf_counter()
            for future in [batcher.submit(SAMPLE) for _ in range(requests)]:
                future.result()
        seen += [Seen(*one) for one in batcher._seen]
    (batch,) = seen
    assert batch.start_s >= batch.due_s >= began_s + after_s
    assert after_s or batch.due_s < began_s + 0.05
