"""The shapes that an engine admits: one optimisation profile, or several for different batch sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from trtopt.records.base import Record, Shape

MAX_PROFILES = 16
"""Of one engine; each is built, and takes its share of the engine's file, by itself."""


class ShapeRange(Record, frozen=True, kw_only=True):
    """The shapes that an optimisation profile admits for one input, and the one it is tuned for."""

    min: Shape
    opt: Shape
    max: Shape

    @property
    def is_fixed(self) -> bool:
        """Whether it admits only one shape."""
        return self.min == self.max

    @property
    def fixed(self) -> tuple[int | None, ...]:
        """The lengths of the axes that have only one, None for the others."""
        return tuple(low if low == high else None for low, high in zip(self.min, self.max, strict=True))

    def admits(self, shape: Shape) -> bool:
        """Whether every axis lies within."""
        return len(shape) == len(self.min) and all(
            low <= axis <= high for low, axis, high in zip(self.min, shape, self.max, strict=True)
        )


class Profile(Record, frozen=True, kw_only=True):
    """One of several optimisation profiles: a range of batch sizes, and of every input, batch included."""

    batch: ShapeRange
    shapes: dict[str, ShapeRange]


class Span(NamedTuple):
    """Batch sizes `low` to `high` run under the profile of that index."""

    low: int
    high: int
    profile: int


def suited(profiles: Sequence[Mapping[str, ShapeRange]], shapes: Mapping[str, Shape]) -> int | None:
    """The index of the profile to run shapes under: the narrowest that admits them, of equally narrow ones
    the one tuned nearest, and of those the first; None if none admits them.

    Profiles have a range for every input; width and distance are summed over all axes.
    """
    fitting = [
        (_width(ranges), _distance(ranges, shapes), index)
        for index, ranges in enumerate(profiles)
        if all(ranges[name].admits(shape) for name, shape in shapes.items())
    ]
    return min(fitting)[-1] if fitting else None


def _width(ranges: Mapping[str, ShapeRange]) -> int:
    return sum(sum(one.max) - sum(one.min) for one in ranges.values())


def _distance(ranges: Mapping[str, ShapeRange], shapes: Mapping[str, Shape]) -> int:
    return sum(
        abs(best - axis)
        for name, shape in shapes.items()
        for best, axis in zip(ranges[name].opt, shape, strict=True)
    )


def spans_of(batches: Sequence[ShapeRange]) -> tuple[Span, ...]:
    """All batch sizes that profiles admit, by ascending size, with the profile `suited` to each.

    Which one that is changes only where a range begins or ends, and, among equally narrow ones, halfway
    between the sizes that two are tuned for.
    """
    starts = {one.min[0] for one in batches} | {one.max[0] + 1 for one in batches}
    halfway = {(one.opt[0] + other.opt[0]) // 2 for one in batches for other in batches}
    cuts = sorted(starts | halfway | {place + 1 for place in halfway})
    profiles = [{"batch": one} for one in batches]
    spans: list[Span] = []
    for low, end in pairwise(cuts):
        profile = suited(profiles, {"batch": (low,)})
        if profile is None:
            continue
        if spans and (spans[-1].high, spans[-1].profile) == (low - 1, profile):
            low = spans.pop().low
        spans.append(Span(low, end - 1, profile))
    return tuple(spans)
