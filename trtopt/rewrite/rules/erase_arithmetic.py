"""x·1, x/1, x+0, x−0, x¹ → x, where the constant neither widens the shape nor changes the type.

A scalar constant, or one of no more axes than x with every axis 1, cannot widen x.
(x + 0 turns −0 into +0: equal, and equal in every consumer but 1/x.)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trtopt.rewrite.evidence import layers, quantises
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope

_MOST_ELEMENTS = 1 << 16  # a bias is read to see whether it is zero, a table of weights is not
_NEUTRAL = {"Mul": 1.0, "Div": 1.0, "Pow": 1.0, "Add": 0.0, "Sub": 0.0}


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes(*_NEUTRAL):
        places = (1, 0) if node.op in ("Mul", "Add") else (1,)
        for place in places:
            constant = node.inputs[place]
            small = scope.is_constant(constant) and np.prod(constant.shape) <= _MOST_ELEMENTS
            value = scope.value(constant) if small else None
            if value is not None and value.size and (value == _NEUTRAL[node.op]).all():
                yield Match(node, {"constant": node.inputs[place], "source": node.inputs[1 - place]})
                break


def _check(scope: Scope, match: Match) -> str | None:
    constant, source = match.parts["constant"], match.parts["source"]
    rank = scope.rank(source)
    if len(constant.shape) and (rank is None or len(constant.shape) > rank):
        return "the constant may widen the shape"
    for axis, own in zip(reversed(constant.shape), reversed(source.shape or []), strict=False):
        if axis not in (1, own):
            return "the constant may widen the shape"
    return scope.why_not_bypass(match.node, source)


def _apply(scope: Scope, match: Match) -> None:
    scope.bypass(match.node, match.parts["source"])


RULE = Rule(
    "erase-arithmetic",
    "B",
    "Scale erasure",
    _find,
    _check,
    _apply,
    stage=Stage.CLEANING,
    after=("fold-constants",),
    evidence=(
        layers("no layer for the constant; behind a convolution it does it itself"),
        quantises("nothing float between a convolution and the next layer"),
    ),
)
