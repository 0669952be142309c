"""Rows put together by one thread or several."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import numpy as np
import pytest
from hypothesis import given, strategies as st

from trtopt.serving import row_copying as copying
from trtopt.serving.row_copying import Copier


@pytest.fixture(scope="module", autouse=True)
def everything_is_large() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(copying, "SHARE_BYTES", 1)
        yield


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.integers(1, 6),
    st.integers(0, 3),
    st.sampled_from([3, 501]),
)
def test_every_row_is_where_it_belongs_and_nothing_else_is_touched(
    lengths: list[int], threads: int, before: int, width: int
) -> None:
    rows = np.arange(sum(lengths) * width, dtype=np.int32).reshape(-1, width)
    batch = np.full((before + len(rows) + 2, width), -1, np.int32)
    ends = np.cumsum(lengths)
    placed = [(before + int(end) - n, rows[end - n : end]) for end, n in zip(ends, lengths, strict=True)]
    with closing(Copier(threads)) as copier:
        copier.fill(batch, placed)
    assert (batch[before : before + len(rows)] == rows).all()
    assert (batch[:before] == -1).all()
    assert (batch[before + len(rows) :] == -1).all()


@pytest.mark.parametrize(("threads", "rows", "at_work"), [(1, 8, 1), (4, 8, 4), (4, 2, 2)])
def test_as_many_threads_share_the_rows_as_there_are(threads: int, rows: int, at_work: int) -> None:
    with closing(Copier(threads)) as copier:
        assert threads_at(copier, rows, Gate(at_work)) == at_work


@pytest.mark.parametrize(("others", "at_work"), [(1, 2), (2, 1), (5, 1)])
def test_batches_put_together_at_a_time_share_the_threads(others: int, at_work: int) -> None:
    with closing(Copier(4)) as copier, ExitStack() as opened:
        for _ in range(others):
            held = Held()
            thread = threading.Thread(target=threads_at, args=(copier, 8, held))
            opened.callback(thread.join)
            opened.callback(held.go_on.set)
            thread.start()
            assert held.begun.wait(30)
        assert threads_at(copier, 8, Gate(at_work)) == at_work
        opened.close()
        assert threads_at(copier, 8, Gate(4)) == 4


def threads_at(copier: Copier, rows: int, gate: Gate | Held) -> int:
    """How many threads put the rows of a batch together."""
    batch = np.zeros((rows, 2), np.float32)
    copier.fill(batch, [(0, Waiting(np.ones((rows, 2), np.float32), gate))])  # type: ignore[list-item]
    assert (batch == 1).all()
    return len(gate.passed)


def test_a_batch_of_which_nothing_lies_on_the_host_stays_unchanged() -> None:
    batch = np.ones((4, 2), np.float32)
    with closing(Copier(2)) as copier:
        copier.fill(batch, [])
    assert (batch == 1).all()


class Gate(threading.Barrier):
    """Notes who has passed."""

    def __init__(self, parties: int) -> None:
        super().__init__(parties, timeout=30)
        self.passed: set[str] = set()


class Held:
    """Lets nobody go on until it is told to."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.passed: set[str] = set()

    def wait(self) -> None:
        """Until then."""
        self.begun.set()
        assert self.go_on.wait(30)


class Waiting:
    """Rows that are read only when the gate lets who reads them pass."""

    def __init__(self, rows: np.ndarray, gate: Gate | Held) -> None:
        self.rows, self.gate = rows, gate

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: slice) -> Waiting:
        return Waiting(self.rows[key], self.gate)

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        self.gate.passed.add(threading.current_thread().name)
        self.gate.wait()
        return self.rows


def test_what_fails_in_any_thread_is_reported_when_none_writes_any_more() -> None:
    batch = np.zeros((4, 2), np.float32)
    good, bad = np.ones((3, 2), np.float32), np.ones((1, 5), np.float32)
    with closing(Copier(2)) as copier, pytest.raises(ValueError, match="could not broadcast"):
        copier.fill(batch, [(0, good), (3, bad)])
    assert (batch[:3] == 1).all()
