"""Reshape(Transpose(Reshape(x, merged), p), split) → Transpose(x, q), where whole axes of x move.

PyTorch's attention is exported so: batch and heads are merged into one axis, the last two axes of the keys
change places, and the merged axis is split again. With the lengths a·b·c of x, each axis of the middle is a
run of neighbouring axes of x; if the last shape has the lengths of these runs in the order of p, the three
are the one Transpose that lays the runs down in that order. An axis that is not known keeps its own length:
it stands alone in its run, or in the run of the one open axis (-1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import Any

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope

Length = int | str
"""A number, or a name for one that is not known."""
_OPEN = -1


def _find(scope: Scope) -> Iterator[Match]:
    for last in scope.nodes("Reshape"):
        turn = scope.producer(last.inputs[0], "Transpose")
        first = None if turn is None else scope.producer(turn.inputs[0], "Reshape")
        if first is not None and scope.rank(first.inputs[0]) is not None:
            yield Match(last, {"source": first.inputs[0], "order": _order(scope, first, turn, last)})


def _order(scope: Scope, first: Any, turn: Any, last: Any) -> list[int] | None:
    """The axes of what `first` reads in the order of the result; None if they do not move whole."""
    source: list[Length] = [
        axis if isinstance(axis, int) and axis > 0 else f"axis {place}"
        for place, axis in enumerate(first.inputs[0].shape)
    ]
    merged = _target(scope, first, source)
    runs = None if merged is None else _runs(source, merged)
    if runs is None:
        return None
    perm = turn.attrs.get("perm") or range(len(runs))[::-1]
    turned = [_length([source[axis] for axis in runs[place]]) for place in perm]
    order = [axis for place in perm for axis in runs[place]]
    split = _target(scope, last, turned)
    lengths = [source[axis] for axis in order]
    fits = split is not None and len(split) == len(lengths) and split.count(_OPEN) <= 1
    return order if fits and all(a in (_OPEN, b) for a, b in zip(split or (), lengths, strict=True)) else None


def _target(scope: Scope, node: Any, before: Sequence[Length]) -> list[Length] | None:
    """The shape operand of a Reshape, its zeros replaced by the lengths they copy."""
    shape = None if node.attrs.get("allowzero") else scope.value(node.inputs[1])
    if shape is None or any(axis == 0 and place >= len(before) for place, axis in enumerate(shape)):
        return None
    return [int(axis) or before[place] for place, axis in enumerate(shape)]


def _runs(source: Sequence[Length], merged: Sequence[Length]) -> list[list[int]] | None:
    """The neighbouring axes of `source` that each axis of `merged` is made of."""
    place = merged.index(_OPEN) if _OPEN in merged else len(merged)
    head = _counts(source, merged[:place])
    tail = _counts(source[::-1], merged[place + 1 :][::-1])
    if head is None or tail is None:
        return None
    left = len(source) - sum(head) - sum(tail)
    if (left > 0) != (place < len(merged)):
        return None
    ends = list(accumulate([*head, *([left] if left else []), *tail[::-1]]))
    return [list(range(start, end)) for start, end in zip([0, *ends], ends, strict=False)]


def _counts(source: Sequence[Length], merged: Sequence[Length]) -> list[int] | None:
    """How many axes of `source` from the first on each axis of `merged`, none of them open, is made of."""
    counts: list[int] = []
    for axis in merged:
        rest = source[sum(counts) :]
        lengths = (_length(rest[:count]) for count in range(1, len(rest) + 1))
        found = next((count for count, length in enumerate(lengths, 1) if length == axis), None)
        if found is None:
            return None
        counts.append(found)
    return counts


def _length(axes: Sequence[Length]) -> Length:
    """The length of axes merged into one; a name of its own where one of several is not known."""
    if len(axes) == 1:
        return axes[0]
    known = [axis for axis in axes if isinstance(axis, int)]
    return prod(known) if len(known) == len(axes) else "·".join(map(str, axes))


def _check(scope: Scope, match: Match) -> str | None:
    if match.parts["order"] is None:
        return "axes are cut or joined on the way"
    return None if match.parts["order"] else "a scalar has no axes to put in order"


def _apply(scope: Scope, match: Match) -> None:
    scope.replace(match.node, "Transpose", [match.parts["source"]], {"perm": match.parts["order"]})


RULE = Rule(
    "transpose-merged",
    "B",
    "fused multi-head attention",
    _find,
    _check,
    _apply,
    stage=Stage.SHUFFLES,
    after=("transpose-reduce",),
    evidence=(layers("one layer instead of two"),),
)
