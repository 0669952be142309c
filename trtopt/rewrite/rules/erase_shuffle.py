"""Nodes that move no data are removed.

Transpose that keeps the order; Reshape to the shape that x has; Expand or Tile that repeats nothing; Pad by
zero; Concat, Sum, Max, Min or Mean of one input; Slice of the whole static axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _is_whole_slice(scope: Scope, node: Any) -> bool:
    shape = node.inputs[0].shape
    starts, ends = scope.integers(node, "starts", 1), scope.integers(node, "ends", 2)
    if shape is None or starts is None or ends is None:
        return False
    axes, steps = scope.integers(node, "axes", 3), scope.integers(node, "steps", 4)
    given = len(node.inputs) > 3 and not node.inputs[3].is_empty()
    if (axes is None and given) or (steps is None and len(node.inputs) > 4 and not node.inputs[4].is_empty()):
        return False
    for axis, start, end in zip(axes or range(len(starts)), starts, ends, strict=False):
        whole = end >= 2**31 - 1 or (isinstance(shape[axis], int) and end >= shape[axis])
        if start != 0 or not whole:
            return False
    return all(step == 1 for step in steps or ())


def _moves_nothing(scope: Scope, node: Any) -> bool:
    source, out = node.inputs[0], node.outputs[0]
    if node.op == "Transpose":
        order = node.attrs.get("perm")
        rank = scope.rank(source)
        return list(order) == sorted(order) if order is not None else rank is not None and rank < 2
    if node.op in ("Concat", "Sum", "Max", "Min", "Mean"):
        return len(node.inputs) == 1
    if node.op == "Pad":
        pads = scope.integers(node, "pads", 1)
        return pads is not None and not any(pads)
    if node.op == "Tile":
        return set(scope.integers(node, "", 1) or [0]) == {1}
    if node.op == "Slice":
        return _is_whole_slice(scope, node)
    if node.op == "Expand":
        shape = scope.value(node.inputs[1])
        narrow = shape is not None and (shape == 1).all() and len(shape) <= (scope.rank(source) or 0)
        return narrow or (scope.static_shape(out) is not None and scope.same_shape(source, out))
    if node.op == "Reshape" and _keeps_own_shape(scope, node):
        return True
    open_axes = sum(not isinstance(axis, int) for axis in out.shape or ())
    return scope.same_shape(source, out) and open_axes <= 1  # one open axis follows from the others


def _keeps_own_shape(scope: Scope, node: Any) -> bool:
    """Whether a Reshape's constant names every axis of its input in place but one, which is then the same."""
    before, shape = node.inputs[0].shape, scope.value(node.inputs[1])
    if before is None or shape is None or len(before) != len(shape) or 0 in before:
        return False
    copies = not node.attrs.get("allowzero")
    kept = sum(new == own or (new == 0 and copies) for own, new in zip(before, shape.tolist(), strict=True))
    return kept >= len(before) - 1 and bool((shape >= -1).all())


def _find(scope: Scope) -> Iterator[Match]:
    ops = (
        "Transpose",
        "Reshape",
        "Flatten",
        "Expand",
        "Tile",
        "Pad",
        "Concat",
        "Sum",
        "Max",
        "Min",
        "Mean",
        "Slice",
    )
    for node in scope.nodes(*ops):
        if _moves_nothing(scope, node):
            yield Match(node)


def _check(scope: Scope, match: Match) -> str | None:
    return scope.why_not_bypass(match.node, match.node.inputs[0])


def _apply(scope: Scope, match: Match) -> None:
    scope.bypass(match.node, match.node.inputs[0])


RULE = Rule(
    "erase-shuffle",
    "B",
    "no Shuffle, Slice or copy layer",
    _find,
    _check,
    _apply,
    stage=Stage.SHUFFLES,
    after=("transpose-merged",),
    evidence=(layers("no Reformat; behind a convolution it does it itself"),),
)
