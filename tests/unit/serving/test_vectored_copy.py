"""Rows copied by one system call."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trtopt.serving import row_copying as copying, row_copying as vectored
from trtopt.serving.row_copying import Copier, Placed, copy_in, copy_out, own_rows

WIDTH = 600


def rows_of(*lengths: int) -> list[np.ndarray]:
    """Different numbers, [length, WIDTH] each."""
    whole = np.arange(sum(lengths) * WIDTH, dtype=np.float32).reshape(-1, WIDTH)
    return [part.copy() for part in np.split(whole, np.cumsum(lengths)[:-1])]


@pytest.mark.parametrize("count", [1, 7, 1024, 2050])
def test_rows_of_any_number_land_where_they_belong(count: int) -> None:
    rows = rows_of(*[1] * count)
    batch = np.full((count + 2, WIDTH), -1, np.float32)
    assert copy_in(batch, [(1 + at, row) for at, row in enumerate(rows)])
    assert (batch[1:-1] == np.concatenate(rows)).all()
    assert (batch[[0, -1]] == -1).all()


def test_gaps_are_left_alone() -> None:
    first, second = rows_of(2, 3)
    batch = np.full((9, WIDTH), -1, np.float32)
    assert copy_in(batch, [(0, first), (5, second)])
    assert (batch[:2] == first).all()
    assert (batch[5:8] == second).all()
    assert (batch[[2, 3, 4, 8]] == -1).all()


def another_type(row: np.ndarray) -> Placed:
    return 0, row.astype(np.float64)


def with_gaps(row: np.ndarray) -> Placed:
    return 0, np.repeat(row, 2, axis=1)[:, ::2]


def another_shape(row: np.ndarray) -> Placed:
    return 0, row[:, :-1].copy()


def beyond_the_end(row: np.ndarray) -> Placed:
    return 4, row


@pytest.mark.parametrize("change", [another_type, with_gaps, another_shape, beyond_the_end])
def test_what_is_not_plain_is_refused_before_anything_is_written(
    change: Callable[[np.ndarray], Placed],
) -> None:
    good, bad = rows_of(1, 1)
    batch = np.full((4, WIDTH), -1, np.float32)
    assert not copy_in(batch, [(0, good), change(bad)])
    assert (batch == -1).all()


def test_a_batch_with_gaps_is_refused() -> None:
    (row,) = rows_of(1)
    assert not copy_in(np.zeros((4, 2 * WIDTH), np.float32)[:, ::2], [(0, row)])


@pytest.mark.parametrize("read", [None, lambda *_: -1, lambda *_: 4 * WIDTH])
def test_where_the_system_refuses_or_stops_half_way_numpy_copies(
    monkeypatch: pytest.MonkeyPatch, read: Callable[..., int] | None
) -> None:
    monkeypatch.setattr(vectored, "_system_call", lambda _: read)
    rows = rows_of(2, 1)
    batch = np.zeros((3, WIDTH), np.float32)
    assert not copy_in(batch, [(0, rows[0]), (2, rows[1])])
    copier = Copier(1)
    copier.fill(batch, [(0, rows[0]), (2, rows[1])])
    copier.close()
    assert (batch == np.concatenate(rows)).all()


def test_other_threads_python_does_not_hold_every_row_up() -> None:
    """One release of the interpreter's lock for all rows, not one each: seen by what is called."""
    rows, calls = rows_of(*[1] * 40), []
    batch = np.zeros((40, WIDTH), np.float32)
    real = vectored._system_call("process_vm_readv")
    assert real is not None, "Linux has it"

    def counted(*arguments: int) -> int:
        calls.append(arguments)
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(vectored, "_system_call", lambda _: counted)
        copier = Copier(1)
        copier.fill(batch, list(enumerate(rows)))
        copier.close()
    assert len(calls) == 1
    assert (batch == np.concatenate(rows)).all()


def test_a_system_without_the_call_has_none() -> None:
    assert vectored._system_call("no_such_call") is None


def test_a_sandbox_that_forbids_the_call_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    class Forbidding:
        def __call__(self, *regions: object) -> int:
            asked.append(regions)
            return -1

    class Library:
        def __getitem__(self, name: str) -> Forbidding:
            return Forbidding()

    monkeypatch.setattr(vectored.ctypes, "CDLL", lambda name: Library())
    vectored._system_call.cache_clear()
    try:
        batch, (row,) = np.zeros((1, WIDTH), np.float32), rows_of(1)
        assert [copy_in(batch, [(0, row)]) for _ in range(3)] == [False] * 3
        assert len(asked) == 1
    finally:
        monkeypatch.undo()
        vectored._system_call.cache_clear()
    assert copy_in(batch, [(0, row)])


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("is_small", [False, True])
@pytest.mark.parametrize("width", [3, WIDTH])
def test_rows_get_memory_that_no_one_else_writes_to(
    monkeypatch: pytest.MonkeyPatch, width: int, is_small: bool, is_refused: bool
) -> None:
    """Together, where a row that is kept keeps little alive, else each by itself."""
    monkeypatch.setattr(copying, "SHARED_BYTES", 4 * 6 * width - (not is_small))
    if is_refused:
        monkeypatch.setattr(vectored, "_system_call", lambda _: None)
    batch = np.arange(6 * width, dtype=np.float32).reshape(6, width)
    spans = [(0, 1), (1, 3), (5, 6)]
    kept = own_rows(batch, spans)
    expected = [batch[start:stop].copy() for start, stop in spans]
    batch[:] = -1
    for rows, before in zip(kept, expected, strict=True):
        assert rows.shape == before.shape
        assert (rows.base is None) != is_small
        assert (rows == before).all()
    kept[0][:] = -2
    assert (kept[1] == expected[1]).all()


def test_out_of_a_batch_and_into_it_are_two_ways() -> None:
    batch, rows = np.ones((2, WIDTH), np.float32), np.zeros((2, WIDTH), np.float32)
    assert copy_out(batch, [(0, rows[:1]), (1, rows[1:])])
    assert (rows == 1).all()
    assert (batch == 1).all()
