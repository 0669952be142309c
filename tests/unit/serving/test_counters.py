import pytest

from trtopt.records import Spread
from trtopt.serving.batcher import Counters, spread


def test_every_accepted_request_is_accounted_for() -> None:
    counters = Counters()
    counters.accepted, counters.answered, counters.failed, counters.cancelled = 20, 8, 6, 1
    told = counters.statistics(waiting=3)
    assert (told.waiting, told.running) == (3, 2)


def test_batches_are_counted_by_their_size_and_times_are_milliseconds() -> None:
    counters = Counters()
    counters.batch(2, [0.001, 0.003], 0.25)
    counters.batch(1, [0.002], 0.5)
    counters.batch(8, [0.004], 0.75)
    told = counters.statistics(waiting=0)
    assert told.batch_sizes == {1: 1, 2: 1, 8: 1}
    assert told.queue.p50_ms == pytest.approx(2.5)
    assert (told.queue.max_ms, told.compute.p50_ms, told.compute.max_ms) == (4.0, 500.0, 750.0)


def test_only_the_latest_times_are_kept() -> None:
    counters = Counters()
    counters.batch(1, [9.0], 9.0)
    for _ in range(4096):
        counters.batch(1, [1.0], 1.0)
    assert counters.statistics(waiting=0).queue.max_ms == 1000.0
    assert counters.statistics(waiting=0).batch_sizes == {1: 4097}


def test_no_times_have_no_percentiles() -> None:
    assert spread([]) == Spread(p50_ms=None, p90_ms=None, p99_ms=None, max_ms=None)
