"""Which forms an INT8 graph may have, which regions, and which forms are worth a build at one batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean

import msgspec

from trtopt.errors import TrtoptError
from trtopt.inspect.graph import read_graph
from trtopt.inspect.regions import Region, find_regions
from trtopt.measure.statistics.comparison import THRESHOLD
from trtopt.onnxio.model_file import ModelFile, load
from trtopt.onnxio.prepare import prepare
from trtopt.precision.placement.draft import PlacementOptions, View
from trtopt.precision.placement.evidence import Expected, minor_differences
from trtopt.precision.placement.place import applicable, place
from trtopt.precision.qdq import Scales, qdq_format_for, write
from trtopt.records.precision import Forms
from trtopt.rewrite.catalogue import RULES
from trtopt.rewrite.driver import rewrite
from trtopt.targets import target_named

_REMEMBERED = 16


@lru_cache(_REMEMBERED)
def planned_regions(model: Path, sha256: str, target: str, exclude: tuple[str, ...]) -> tuple[Region, ...]:
    """Regions of the INT8 graph of a float one; `sha256`: graphs lie in one place one after the other.

    None where the graph cannot be quantised.
    """
    try:
        made = _rewritten(model, target)
        plan = place(View(made.proto), PlacementOptions("int8", exclude))
        write(made, plan, Scales(dict.fromkeys(plan.tensors, 1.0)), qdq_format_for("int8", target))
    except TrtoptError:
        return ()
    return find_regions(read_graph(made.proto, {}))


@lru_cache(_REMEMBERED)
def planned_forms(
    model: Path, sha256: str, target: str, exclude: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Choices by form that the INT8 graph of a float one has a place for; none where there is none."""
    try:
        return applicable(View(_rewritten(model, target).proto), target_named(target), exclude)
    except TrtoptError:
        return {}


def _rewritten(model: Path, target: str) -> ModelFile:
    file = load(model)
    rules = [rule for rule in RULES if rule.quantises(target)]
    return rewrite(replace(file, proto=prepare(file.proto)[0]), rules, target_named(target)).model


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
        hopes = {one: self._hope(one) for one in self.expected} | {one: one.hope for one in self._combined()}
        open_ones = [
            one
            for one, hope in hopes.items()
            if one.forms not in self.measured and (best is None or hope < best - THRESHOLD)
        ]
        open_ones.sort(key=lambda one: one.rate)
        near = [one for one in open_ones if one.rate <= open_ones[0].rate + THRESHOLD]
        first = max(near, key=lambda one: (round(one.sqnr_db, 1), -one.rate), default=None)
        return sorted(open_ones, key=lambda one: one is not first)

    def _hope(self, one: Expected) -> float:
        """The change at best: forms with the same main choices were off by as much on this GPU."""
        misses = [
            change - known.change
            for known in self.expected
            if (change := self.measured.get(known.forms)) is not None
            and minor_differences(known.forms, one.forms) is not None
        ]
        return one.hope_beside(fmean(misses)) if misses else one.hope

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
