"""Which sizes to measure besides the requested ones: neighbours, and where a curve still bends. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

TOLERANCE = 0.05
"""A twentieth more throughput is worth a look; less is flat."""

FINEST = 1.25
"""Sizes are not looked at closer together than a quarter."""

POWER_OF_TWO = "pow2"
NEIGHBOURS = (POWER_OF_TWO, "8", "32")


def with_neighbours(sizes: Iterable[int], kinds: Collection[str]) -> tuple[int, ...]:
    """The sizes, and next to each the powers of two (`pow2`) and multiples of 8 and 32 below and above it.

    A size that is one itself has no such neighbour: 24 has 16 and 32 as powers of two and as multiples of 32
    only 32, since 0 is no size.
    """
    found = set(sizes)
    for size in tuple(found):
        if POWER_OF_TWO in kinds:
            below = 1 << (size.bit_length() - 1)
            found |= {below, below if below == size else 2 * below}
        for step in (int(kind) for kind in kinds if kind != POWER_OF_TWO):
            below = size // step * step
            found |= {below, below if below == size else below + step} - {0}
    return tuple(sorted(found))


def next_size(rates: Mapping[int, float], tried: Collection[int] = ()) -> int | None:
    """The size to measure next on a curve of throughput over size; None where no more is to be learnt.

    Between two neighbours there is nothing to learn where their throughput differs by `TOLERANCE` at most,
    or where the curve around them is straight on logarithmic axes: each of them that has neighbours on both
    sides lies on the line between those two, within `TOLERANCE`. Of the other gaps the one with the largest
    difference is halved, geometrically.

    Args:
        rates: samples per second, positive, by size.
        tried: sizes that gave no figure; gaps whose middle is among them are skipped.
    """
    sizes = sorted(rates)
    heights = [math.log(rates[size]) for size in sizes]
    gaps = []
    for index, (low, high) in enumerate(pairwise(sizes)):
        middle = round(math.sqrt(low * high))
        rise = abs(heights[index + 1] - heights[index])
        if high < FINEST * low or middle in (low, high) or middle in tried:
            continue
        if rise > math.log1p(TOLERANCE) and not _is_straight(sizes, heights, index):
            gaps.append((rise, -low, middle))
    return max(gaps)[2] if gaps else None


def _is_straight(sizes: Sequence[int], heights: Sequence[float], index: int) -> bool:
    """Whether both ends of the gap after `index` lie on the line between their neighbours."""
    inner = [place for place in (index, index + 1) if 0 < place < len(sizes) - 1]
    return bool(inner) and all(_bend(sizes, heights, place) <= math.log1p(TOLERANCE) for place in inner)


def _bend(sizes: Sequence[int], heights: Sequence[float], place: int) -> float:
    """How far a height lies from the line between its neighbours."""
    before, here, after = (math.log(sizes[place + step]) for step in (-1, 0, 1))
    share = (here - before) / (after - before)
    return abs(heights[place] - (1 - share) * heights[place - 1] - share * heights[place + 1])
