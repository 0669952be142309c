"""Several short sequences in one row, so that less of it is padding: which go together, and what it saves.

Pure. It takes a model that keeps the sequences of a row apart: its mask has a block for each on its diagonal,
and positions begin again with each (Krell et al. 2021, arXiv:2107.02027).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trtopt.errors import UsageError
from trtopt.records import PackingEstimate
from trtopt.serving.planning.prediction import Demand
from trtopt.serving.planning.setups import Setup
from trtopt.serving.planning.traffic import lengths_of

MOST = 3
"""Sequences in a row: Krell et al. found that more gain next to nothing."""

_DRAWN = 6000
_SEED = 0


def first_fit_decreasing(lengths: Sequence[int], row: int, most: int = MOST) -> list[list[int]]:
    """Pack sequences into rows of `row` tokens, at most `most` to a row; rows of indices into `lengths`.

    The longest first, each into the first row that has room for it: first-fit decreasing (Johnson 1973,
    "Near-optimal bin packing algorithms"), with a bound on the items of a bin (Krause, Shen and Schwetman
    1975). Of equal lengths the earlier one goes first.

    Raises:
        UsageError: a sequence that is longer than a row, or shorter than 1.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda one: -lengths[one]):
        length = lengths[index]
        if not 1 <= length <= row:
            raise UsageError(f"a sequence of length {length} fits no row of {row}", "pack into longer rows")
        place = next((at for at, left in enumerate(room) if left >= length and len(rows[at]) < most), None)
        if place is None:
            rows.append([index])
            room.append(row - length)
        else:
            rows[place].append(index)
            room[place] -= length
    return rows


@dataclass(frozen=True)
class _Computed:
    """What is computed for all requests that were drawn: rows by their length, and tokens of sequences."""

    rows: dict[int, int]
    tokens: int

    @property
    def padding(self) -> float:
        """The share of what is computed that is no token of a sequence."""
        return 1.0 - self.tokens / sum(length * count for length, count in self.rows.items())


def packing_estimate(setup: Setup, demand: Demand) -> PackingEstimate | None:
    """What packing would do for a setup's requests; None where it leaves as many rows as there are.

    Requests are drawn by the demand's lengths. Those that fit into a row of one of the setup's lengths are
    packed, as many at a time as may fill the largest batch; longer ones are padded up as without packing. Of
    all lengths of a row the one with the highest capacity is reported. Rows are taken to need as long as the
    measured ones; what packing costs the host, and the model its mask, is not counted.
    """
    fleet = setup.fleet
    drawn = lengths_of(demand.process, demand.shares, _DRAWN, _SEED)
    buckets = np.asarray(fleet.lengths)[np.searchsorted(fleet.lengths, drawn)]
    window = setup.policy.max_batch * MOST
    before = _Computed(_counted(buckets.tolist()), int(drawn.sum()))
    best: PackingEstimate | None = None
    for row in fleet.lengths:
        short = drawn[drawn <= row].tolist()
        packed = sum(
            len(first_fit_decreasing(short[at : at + window], row)) for at in range(0, len(short), window)
        )
        rows = _counted(buckets[drawn > row].tolist())
        rows[row] = rows.get(row, 0) + packed
        after = _Computed(rows, before.tokens)
        estimate = PackingEstimate(
            row=row,
            most=MOST,
            window=window,
            requests_per_row=len(short) / packed if packed else 1.0,
            padding_before=before.padding,
            padding_after=after.padding,
            capacity_before=_capacity(setup, before.rows),
            capacity_after=_capacity(setup, after.rows),
        )
        if packed < len(short) and (best is None or estimate.capacity_after > best.capacity_after):
            best = estimate
    return best


def _counted(lengths: Sequence[int]) -> dict[int, int]:
    values, counts = np.unique(np.asarray(lengths, np.int64), return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _capacity(setup: Setup, rows: dict[int, int]) -> float:
    """Requests a second of all that were drawn, with all workers busy with batches of the best size."""
    ms = sum(count * setup.row_ms(setup.fleet.lengths.index(length)) for length, count in rows.items())
    return 1e3 * setup.workers * _DRAWN / ms
