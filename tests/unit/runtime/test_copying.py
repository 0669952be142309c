"""Rows put together by one thread or several."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtopt.runtime import copying
from trtopt.runtime.copying import Copier


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


@pytest.mark.parametrize(
    ("threads", "batches", "rows", "at_work"),
    [(1, 1, 8, 1), (4, 1, 8, 4), (4, 1, 2, 2), (4, 2, 8, 2), (4, 3, 8, 1), (1, 2, 8, 1)],
)
def test_as_many_threads_share_the_rows_as_there_are_for_a_batch(
    threads: int, batches: int, rows: int, at_work: int
) -> None:
    batch, gate = np.zeros((rows, 2), np.float32), Gate(at_work)
    with closing(Copier(threads, batches)) as copier:
        copier.fill(batch, [(0, Waiting(np.ones((rows, 2), np.float32), gate))])  # type: ignore[list-item]
    assert len(gate.passed) == at_work
    assert (batch == 1).all()


def test_a_batch_of_which_nothing_lies_on_the_host_stays_as_it_is() -> None:
    batch = np.ones((4, 2), np.float32)
    with closing(Copier(2)) as copier:
        copier.fill(batch, [])
    assert (batch == 1).all()


class Gate(threading.Barrier):
    """Notes who has passed."""

    def __init__(self, parties: int) -> None:
        super().__init__(parties, timeout=30)
        self.passed: set[str] = set()


class Waiting:
    """Rows that are read only when as many threads as the gate wants read them at a time."""

    def __init__(self, rows: np.ndarray, gate: Gate) -> None:
        self.rows, self.gate = rows, gate

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: slice) -> Waiting:
        return Waiting(self.rows[key], self.gate)

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        self.gate.passed.add(threading.current_thread().name)
        self.gate.wait()
        return self.rows


def test_what_fails_in_any_thread_is_told_when_none_writes_any_more() -> None:
    batch = np.zeros((4, 2), np.float32)
    good, bad = np.ones((3, 2), np.float32), np.ones((1, 5), np.float32)
    with closing(Copier(2)) as copier, pytest.raises(ValueError, match="could not broadcast"):
        copier.fill(batch, [(0, good), (3, bad)])
    assert (batch[:3] == 1).all()
