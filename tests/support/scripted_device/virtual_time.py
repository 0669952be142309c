"""Virtual time for several host threads: a clock for each, and turns with what they share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class HostClocks:
    """The clock of the thread that made it, and one for every thread that is `adopted`.

    Adopted threads start at the maker's time, which stands still meanwhile; when they are done the maker's
    clock is at the latest of theirs. So virtual times do not depend on how the system schedules threads.
    """

    def __init__(self) -> None:
        self._maker = threading.get_ident()
        self._maker_s = 0.0
        self._ends_s: list[float] = []
        self._adopted = threading.local()

    @property
    def now_s(self) -> float:
        """The calling thread's time."""
        if threading.get_ident() != self._maker:
            return float(self._adopted.now_s)
        self._maker_s = max([self._maker_s, *self._ends_s])
        self._ends_s.clear()
        return self._maker_s

    @now_s.setter
    def now_s(self, value: float) -> None:
        if threading.get_ident() == self._maker:
            self._maker_s = value
        else:
            self._adopted.now_s = value

    @contextmanager
    def adopt(self) -> Iterator[None]:
        """Give the calling thread a clock."""
        self._adopted.now_s = self._maker_s
        try:
            yield
        finally:
            self._ends_s.append(self._adopted.now_s)


class Shared(Iterator[T]):
    """An iterator that threads take turns with."""

    def __init__(self, values: Iterator[T]) -> None:
        self._values = values
        self._guard = threading.Lock()

    def __next__(self) -> T:
        with self._guard:
            return next(self._values)
