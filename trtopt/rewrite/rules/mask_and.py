"""Cast(a)·Cast(b) → Cast(a ∧ b), where a and b are BOOL and nothing else reads the casts.

Zeros and ones multiply as AND joins what they were cast from, to the bit and in any type. Networks that put
conditions together in floating point, such as non-maximum suppression over all pairs of boxes, do so in
BOOL then, a quarter of FP32's size, and cast once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Mul"):
        casts = [scope.producer(tensor, "Cast") for tensor in node.inputs]
        if all(cast is not None and scope.dtype(cast.inputs[0]) == np.bool_ for cast in casts):
            yield Match(node, {"casts": casts})


def _check(scope: Scope, match: Match) -> str | None:
    if any(scope.only_use(cast.outputs[0]) is None for cast in match.parts["casts"]):
        return "a cast is used elsewhere too: it would stay"
    return None


def _apply(scope: Scope, match: Match) -> None:
    node, (first, second) = match.node, match.parts["casts"]
    flags = [first.inputs[0], second.inputs[0]]
    both = scope.compute(node, "And", flags, flags[0], **node.attrs)  # below opset 7 they align the axes
    scope.replace(node, "Cast", [both], first.attrs)


RULE = Rule(
    "mask-and",
    "B",
    "one elementwise layer less",
    _find,
    _check,
    _apply,
    stage=Stage.SELECTION,
    after=("where-not",),
    evidence=(layers("does it itself"),),
)
