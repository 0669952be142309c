"""Counting what becomes of requests, in bounded memory."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

import numpy as np

from trtopt.records import BatcherStatistics, Spread

_LATEST = 4096


class Counters:
    """Counts of a batcher. No thread's: its owner guards it."""

    def __init__(self) -> None:
        self.accepted = self.rejected = self.invalid = 0
        self.answered = self.failed = self.expired = self.cancelled = 0
        self._batch_sizes: Counter[int] = Counter()
        self._queue_ms: deque[float] = deque(maxlen=_LATEST)
        self._compute_ms: deque[float] = deque(maxlen=_LATEST)

    def batch(self, rows: int, queue_s: Iterable[float], compute_s: float) -> None:
        """A batch has been run: its rows, how long each of its requests waited, and what computing took."""
        waits_ms = [seconds * 1e3 for seconds in queue_s]
        self._batch_sizes[rows] += 1
        self._queue_ms.extend(waits_ms)
        self._compute_ms.append(compute_s * 1e3)

    def statistics(self, waiting: int) -> BatcherStatistics:
        """All of it, `waiting` requests being in the queue."""
        done = self.answered + self.failed + self.expired + self.cancelled
        return BatcherStatistics(
            accepted=self.accepted,
            rejected=self.rejected,
            invalid=self.invalid,
            answered=self.answered,
            failed=self.failed,
            expired=self.expired,
            cancelled=self.cancelled,
            waiting=waiting,
            running=self.accepted - done - waiting,
            batch_sizes=dict(sorted(self._batch_sizes.items())),
            queue=spread(self._queue_ms),
            compute=spread(self._compute_ms),
        )


def spread(values_ms: Iterable[float]) -> Spread:
    """Percentiles as numpy gives them, interpolated between neighbours."""
    values = np.fromiter(values_ms, np.float64)
    if not values.size:
        return Spread(p50_ms=None, p90_ms=None, p99_ms=None, max_ms=None)
    p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
    return Spread(p50_ms=p50, p90_ms=p90, p99_ms=p99, max_ms=float(values.max()))
