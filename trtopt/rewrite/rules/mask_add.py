"""Softmax(Where(mask, scores, −∞)) → Softmax(scores + Where(mask, 0, −∞)), the mask's sides either way.

s + 0 = s, and s + c = c for c = −∞ or one so far below every score that they vanish in rounding: −10³⁰ and
less in FP32. A smaller number, or FP16's lowest, would not hide a score wholly, or overflow, and is left
alone. The selection then runs over the mask alone, which seldom has heads, and the scores see the plain Add
that TensorRT's fused multi-head attention knows. Off unless requested: it adds a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope

_ABSORBS = -1e30


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Where"):
        if scope.only_use(node.outputs[0], "Softmax") is None:
            continue
        for scores, hidden in ((1, 2), (2, 1)):
            if scope.scalar(node.inputs[hidden]) is not None and _is_product(scope, node.inputs[scores]):
                yield Match(node, {"scores": node.inputs[scores], "hidden": node.inputs[hidden]})
                break


def _is_product(scope: Scope, tensor: Any) -> bool:
    """Whether the tensor is a product of matrices, scaled or not."""
    scaled = scope.producer(tensor, "Mul", "Div")
    return scope.producer(tensor if scaled is None else scaled.inputs[0], "MatMul") is not None


def _check(scope: Scope, match: Match) -> str | None:
    hidden, dtype = scope.scalar(match.parts["hidden"]), scope.dtype(match.parts["scores"])
    if dtype is None or hidden is None or dtype != scope.dtype(match.parts["hidden"]):
        return "the type of the scores is unknown"
    if dtype != np.float32:
        return "scores may overflow in FP16 where they are masked, and stay infinite or NaN if added to"
    if not hidden <= _ABSORBS:
        return f"{hidden:g} added to a score would not hide it wholly"
    if not scope.same_shape(match.parts["scores"], match.node.outputs[0]):
        return "the mask may widen the scores"
    return None


def _apply(scope: Scope, match: Match) -> None:
    node, scores, hidden = match.node, match.parts["scores"], match.parts["hidden"]
    dtype = scope.dtype(scores)
    zero = scope.constant(np.zeros((), dtype), f"{node.name}/zero")
    sides = [zero if tensor is scores else hidden for tensor in node.inputs[1:]]
    added = scope.compute(node, "Where", [node.inputs[0], *sides], scores)
    scope.replace(node, "Add", [scores, added])


RULE = Rule(
    "mask-add",
    "N",
    "fused multi-head attention",
    _find,
    _check,
    _apply,
    stage=Stage.ATTENTION,
    default=(),
    evidence=(layers("does not fuse, one layer more"),),
)
