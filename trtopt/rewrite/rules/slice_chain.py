"""Slice(Slice(x)) along other axes → one Slice of x.

x[:, ::2][:, :, ::2] is exported so, an axis at a time: patch merging, the focus of detectors, crops. Slices
along different axes do not see one another, so one takes both; where several read the first, each gets its
own and the first dies. TensorRT otherwise copies the first one's result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.match import behind
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope

_Cut = dict[int, tuple[int, int, int]]
"""What is taken of each axis: start, end and step, as Slice has them."""
_INPUTS_OPSET = 10


def _cut(scope: Scope, node: Any) -> _Cut | None:
    """What the Slice takes; None if that is computed, or the rank of its input is not known."""
    rank = scope.rank(node.inputs[0])
    given = [scope.integers(node, "", place) for place in range(1, len(node.inputs))]
    absent = [tensor.is_empty() for tensor in node.inputs[1:]]
    if rank is None or any(value is None and not gone for value, gone in zip(given, absent, strict=True)):
        return None
    starts, ends, axes, steps = (*given, None, None)[:4]
    if starts is None or ends is None:
        return None
    places = [axis % rank for axis in axes] if axes is not None else range(len(starts))
    return dict(zip(places, zip(starts, ends, steps or [1] * len(starts), strict=True), strict=True))


def _check(scope: Scope, match: Match) -> str | None:
    if scope.opset < _INPUTS_OPSET:
        return f"Slice has its bounds as attributes before opset {_INPUTS_OPSET}"
    first, second = _cut(scope, match.parts["first"]), _cut(scope, match.node)
    if first is None or second is None:
        return "a bound is computed"
    if first.keys() & second.keys():
        return "both cut the same axis"
    return None


def _apply(scope: Scope, match: Match) -> None:
    node, first = match.node, match.parts["first"]
    cut = {**(_cut(scope, first) or {}), **(_cut(scope, node) or {})}
    axes = sorted(cut)
    numbers = (*zip(*(cut[axis] for axis in axes), strict=True),)
    named = zip(("starts", "ends", "axes", "steps"), (*numbers[:2], axes, numbers[2]), strict=True)
    bounds = [scope.constant(np.array(value, np.int64), f"{node.name}/{name}") for name, value in named]
    scope.replace(node, "Slice", [first.inputs[0], *bounds])


RULE = Rule(
    "slice-chain",
    "B",
    "one copy instead of two",
    behind(("Slice",), "Slice"),
    _check,
    _apply,
    stage=Stage.SHUFFLES,
    after=("transpose-merged",),
    evidence=(layers("three copies instead of five"),),
)
