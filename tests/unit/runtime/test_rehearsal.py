"""What is made of batches that were seen."""

from __future__ import annotations

import numpy as np
import pytest
from pools import device, pool_on

from trtopt.errors import DeviceError
from trtopt.runtime import rehearsal
from trtopt.runtime.rehearsal import RARE, Rehearsed, Seen, rehearsal_rate, rehearse, told_of

SAMPLE = {"x": np.zeros(4, np.float32)}


def of_ms(*seen: tuple[int, float, float, float], workers: int = 1) -> Rehearsed:
    """Requests, and milliseconds of the first one's coming, of the begin and of the end; workers in turn."""
    batches = [
        Seen(requests, *(ms / 1e3 for ms in times), index % workers)
        for index, (requests, *times) in enumerate(seen)
    ]
    return told_of(batches, workers, [0.25])


def test_batches_are_told_in_the_order_of_their_begins() -> None:
    told = of_ms((2, 5, 6, 9), (1, 0, 1, 3))
    assert [(requests, running) for requests, running, _ in told.batches] == [(1, 1), (2, 1)]
    assert [ms for *_, ms in told.batches] == pytest.approx([2, 3])
    assert told.late_ms == [0.25]


def test_who_comes_while_all_are_busy_waits_for_no_waking() -> None:
    told = of_ms((1, 0, 1, 5), (1, 2, 5, 9), (1, 12, 12.5, 14))
    assert told.wake_ms == pytest.approx([1, 0.5])


def test_a_worker_is_at_a_batch_until_it_begins_the_next_if_that_waits() -> None:
    told = of_ms((1, 0, 1, 5), (1, 2, 5.5, 9), (1, 9.5, 10, 11))
    assert [ms for *_, ms in told.batches] == pytest.approx([4.5, 3.5, 1])
    told = of_ms((1, 0, 1, 5), (1, 0, 1, 4), (1, 2, 5.5, 9), (1, 4.5, 4.75, 9), workers=2)
    assert sorted(ms for *_, ms in told.batches) == pytest.approx([3, 3.5, 4.25, 4.5])


def test_who_comes_while_the_worker_wakes_for_another_waits_for_that_batch() -> None:
    told = of_ms((1, 0, 1, 5), (1, 0.5, 5, 9))
    assert told.wake_ms == pytest.approx([1])


def test_with_a_worker_left_somebody_was_asleep() -> None:
    told = of_ms((1, 0, 1, 5), (1, 2, 2.5, 9), (1, 3, 5, 6), workers=2)  # the third finds both busy
    assert [running for _, running, _ in told.batches] == [1, 2, 2]
    assert told.wake_ms == pytest.approx([1, 0.5])


@pytest.mark.parametrize(
    ("asked", "most", "rate"),
    [(None, 1000, 700), (500, 1000, 500), (900, 1000, 700), (0.01, 1000, RARE), (0.01, 10, 1)],
)
def test_a_rehearsal_neither_takes_hours_nor_lets_a_queue_grow(
    asked: float | None, most: float, rate: float
) -> None:
    assert rehearsal_rate(asked, most) == pytest.approx(rate)


def test_a_rehearsal_sees_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "SECONDS", 0.2)
    with pool_on(device()) as pool:
        seen = rehearse(pool, SAMPLE, 2000.0, 8)
    assert sum(requests for requests, _, _ in seen.batches) == 400
    assert len(seen.late_ms) == 400
    assert seen.wake_ms


def test_a_rehearsal_whose_requests_fail_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(parts: object) -> object:
        raise RuntimeError("no")

    monkeypatch.setattr(rehearsal, "SECONDS", 0.01)
    with pool_on(device()) as pool:
        monkeypatch.setattr(pool, "run_parts", broken)
        with pytest.raises(DeviceError, match="20 of 20 requests failed"):
            rehearse(pool, SAMPLE, 2000.0, 8)
