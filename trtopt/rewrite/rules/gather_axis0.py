"""Gather(W, i, axis=a) on a constant → Gather(Wᵀ, i, axis=0), where the result keeps its axes.

With W moved so that axis a comes first, row i is one contiguous run: TensorRT's fastest Gather. The result's
axes are those of i followed by the rest of W; as they were *before a*, i's axes and the rest, the two agree
only if a single index is taken (a scalar i removes the axis), or the axes before a all have length 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Gather"):
        rank = scope.rank(node.inputs[0])
        if scope.is_constant(node.inputs[0]) and rank and node.attrs.get("axis", 0) % rank:
            yield Match(node, {"axis": node.attrs["axis"] % rank})


def _check(scope: Scope, match: Match) -> str | None:
    weight, indices = match.node.inputs[:2]
    if scope.rank(indices) != 0:
        return "the indices are no scalar: the result's axes would change their order"
    if scope.value(weight) is None:
        return "its type is none of NumPy's"
    if len(weight.outputs) > 1:
        return "the constant is used elsewhere too: a second copy would cost its size"
    return None


def _apply(scope: Scope, match: Match) -> None:
    node, axis = match.node, match.parts["axis"]
    value = scope.value(node.inputs[0])
    if value is not None:
        weight = scope.constant(np.moveaxis(value, axis, 0), node.inputs[0].name)
        scope.replace(node, "Gather", [weight, node.inputs[1]], {"axis": 0})


RULE = Rule(
    "gather-axis0",
    "B",
    "fastest Gather",
    _find,
    _check,
    _apply,
    stage=Stage.SELECTION,
    after=("gather-nd",),
    evidence=(layers("does it itself"),),
)
