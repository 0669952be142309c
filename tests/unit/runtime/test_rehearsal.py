"""What is made of batches that were seen."""

from __future__ import annotations

import pytest

from trtopt.runtime.rehearsal import RARE, Rehearsed, rehearsal_rate, told_of


def of_ms(*seen: tuple[int, float, float, float], workers: int = 1) -> Rehearsed:
    """Requests, and milliseconds of the first one's coming, of the begin and of the end."""
    return told_of([(one[0], *(ms / 1e3 for ms in one[1:])) for one in seen], workers, [0.25])


def test_batches_are_told_in_the_order_of_their_begins() -> None:
    told = of_ms((2, 5, 6, 9), (1, 0, 1, 3))
    assert [(requests, running) for requests, running, _ in told.batches] == [(1, 1), (2, 1)]
    assert [ms for *_, ms in told.batches] == pytest.approx([2, 3])
    assert told.late_ms == [0.25]


def test_who_comes_while_all_are_busy_waits_for_no_waking() -> None:
    told = of_ms((1, 0, 1, 5), (1, 2, 5, 9), (1, 12, 12.5, 14))
    assert told.wake_ms == pytest.approx([1, 0.5])


def test_with_a_worker_left_somebody_was_asleep() -> None:
    told = of_ms((1, 0, 1, 5), (1, 2, 2.5, 9), (1, 3, 5, 6), workers=2)
    assert [running for _, running, _ in told.batches] == [1, 2, 2]
    assert told.wake_ms == pytest.approx([1, 0.5])


@pytest.mark.parametrize(
    ("asked", "most", "rate"),
    [(None, 1000, 700), (500, 1000, 500), (900, 1000, 700), (0.01, 1000, RARE), (0.01, 10, 7)],
)
def test_a_rehearsal_neither_takes_hours_nor_lets_a_queue_grow(
    asked: float | None, most: float, rate: float
) -> None:
    assert rehearsal_rate(asked, most) == pytest.approx(rate)
