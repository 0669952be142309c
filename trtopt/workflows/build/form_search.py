"""Which forms of an INT8 graph are worth a build at one batch size. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from trtopt.measure.statistics.comparison import THRESHOLD
from trtopt.precision.placement.evidence import Expected
from trtopt.records.precision import Forms


@dataclass
class FormSearch:
    """The form that gained most a second in the closest case first; others where they may be faster.

    Of forms within 1 % of the first the most accurate goes before. `measured` are changes of latency against
    the baseline, None for what could not be built or used. A build counts against the `budget`; what misses a
    bound is not built.
    """

    expected: Sequence[Expected]
    budget: int
    measured: dict[Forms, float | None] = field(default_factory=dict)
    built: int = 0

    @property
    def has_budget(self) -> bool:
        """Whether another engine may be built."""
        return self.built < self.budget

    def next(self) -> Forms | None:
        """The form to build next; None if nothing is left that is worth it."""
        hopeful = self._hopeful()
        return hopeful[0].forms if hopeful and self.has_budget else None

    def untried(self) -> tuple[Expected, ...]:
        """What may be faster and the budget has no build for."""
        return () if self.has_budget else tuple(self._hopeful())

    def _hopeful(self) -> list[Expected]:
        changes = [change for change in self.measured.values() if change is not None]
        best = min(changes, default=None)
        open_ones = [one for one in (*self.expected, *self._combined()) if one.forms not in self.measured]
        if best is not None:
            open_ones = [one for one in open_ones if one.hope < best - THRESHOLD]
        open_ones.sort(key=lambda one: one.rate)
        near = [one for one in open_ones if one.change <= open_ones[0].change + THRESHOLD]
        first = max(near, key=lambda one: (round(one.sqnr_db, 1), -one.rate), default=None)
        return sorted(open_ones, key=lambda one: one is not first)

    def _combined(self) -> list[Expected]:
        """The two fastest in one, if both are faster than the baseline and nothing is known of it."""
        ahead = sorted(
            ((change, forms) for forms, change in self.measured.items() if change is not None and change < 0),
            key=lambda item: item[0],
        )
        if len(ahead) < 2:
            return []
        (best, first), (second, other) = ahead[:2]
        both = msgspec.structs.replace(other, **first.chosen)
        if any(one.forms == both for one in self.expected):
            return []
        return [Expected(both, best + second / 2, 0.0)]
