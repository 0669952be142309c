"""Which engines run so many rows, at which batch sizes: pure.

By size alone, the largest engine takes what is over it, and the smallest one that fits takes the rest. Where
that one has been measured, all that have been compete: the fewest milliseconds one after the other, a batch
padded up where that is cheaper, else split. Where it has not, it is used all the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Offer:
    """An engine, or one profile of it: batches from `low` to `high`.

    `latency_ms` is what batches were measured to take: (batch, milliseconds) by ascending batch.
    """

    low: int
    high: int
    latency_ms: tuple[tuple[int, float], ...] = ()

    def admitting(self, rows: int) -> int:
        """The smallest batch that holds the rows, or the largest there is."""
        return min(max(rows, self.low), self.high)

    def time_ms(self, batch: int) -> float:
        """Measured, or on the line between the nearest two; beyond the last, by its time for each row."""
        sizes = [size for size, _ in self.latency_ms]
        place = bisect_left(sizes, batch)
        if place == len(sizes):
            size, ms = self.latency_ms[-1]
            return ms * batch / size
        size, ms = self.latency_ms[place]
        if place == 0 or size == batch:
            return ms
        below, ms_below = self.latency_ms[place - 1]
        return ms_below + (ms - ms_below) * (batch - below) / (size - below)


@dataclass(frozen=True)
class Piece:
    """`rows` rows on the offer of that index, padded up to `batch`."""

    offer: int
    batch: int
    rows: int


class EngineSelector:
    """Selects from a fixed set of offers; immutable after it is made, so many threads may call it."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        self._offers = tuple(offers)
        self.largest = max(offer.high for offer in offers)
        self._first = self._cheapest()

    def pieces(self, rows: int) -> tuple[Piece, ...]:
        """What to run one after the other for `rows` ≥ 1 rows."""
        pieces: list[Piece] = []
        while rows:
            piece = self._next(rows)
            pieces.append(piece)
            rows -= piece.rows
        return tuple(pieces)

    def _next(self, rows: int) -> Piece:
        piece = self._smallest(min(rows, self.largest))
        if not self._offers[piece.offer].latency_ms:
            return piece
        if rows < len(self._first):
            return self._first[rows]
        return self._first[-1]  # the best way to begin with twice the largest batch, and with more

    def _smallest(self, rows: int) -> Piece:
        """An engine of its own for a batch size comes before one for a range."""
        fitting = [(index, offer) for index, offer in enumerate(self._offers) if offer.high >= rows]
        index, offer = min(fitting, key=lambda one: (one[1].admitting(rows), one[1].high - one[1].low))
        return Piece(index, offer.admitting(rows), rows)

    def _cheapest(self) -> list[Piece]:
        """How to begin with n rows so that all of them take the least time; by n, the first one unused. Up to
        twice the largest batch of the engines that were measured, and on these alone.

        cost(n) = min over pieces p of time(p) + cost(n - rows(p)), cost(0) = 0; of equal costs fewer pieces,
        the larger first.
        """
        first = [Piece(0, 0, 0)]
        cost = [(0.0, 0)]
        largest = max((offer.high for offer in self._offers if offer.latency_ms), default=0)
        for rows in range(1, 2 * largest + 1):
            ways = [
                ((ms + cost[rows - piece.rows][0], 1 + cost[rows - piece.rows][1]), piece)
                for piece, ms in self._ways(rows)
            ]
            best, piece = min(ways, key=lambda way: (way[0], -way[1].rows))
            first.append(piece)
            cost.append(best)
        return first

    def _ways(self, rows: int) -> list[tuple[Piece, float]]:
        """Every batch that fits the rows best, and every one that was measured, with its time."""
        return [
            (Piece(index, batch, min(batch, rows)), offer.time_ms(batch))
            for index, offer in enumerate(self._offers)
            if offer.latency_ms
            for batch in sorted({offer.admitting(rows), *(size for size, _ in offer.latency_ms)})
            if offer.low <= batch <= offer.high
        ]
