"""Transpose(constant) → the transposed constant; MatMul(x, Transpose(W)) thereby reads a plain weight.

TensorRT then treats the weight as one, with no Shuffle in front of the product. Also for weights above the
size cap of constant folding, since the result is no larger. A weight behind a DequantizeLinear is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Transpose"):
        if scope.is_constant(node.inputs[0]):
            yield Match(node)


def _check(scope: Scope, match: Match) -> str | None:
    constant = match.node.inputs[0]
    if scope.value(constant) is None:
        return "its type is none of NumPy's"
    if len(constant.outputs) > 1 and not scope.is_small(constant):
        return "the weight is used elsewhere too: a second copy would cost its size"
    return scope.why_not_bypass(match.node, constant)


def _apply(scope: Scope, match: Match) -> None:
    node = match.node
    value = scope.value(node.inputs[0])
    if value is not None:
        scope.bypass(node, scope.constant(np.transpose(value, node.attrs.get("perm")), node.outputs[0].name))


RULE = Rule(
    "transpose-constant",
    "B",
    "weight fusion",
    _find,
    _check,
    _apply,
    stage=Stage.CLEANING,
    evidence=(layers("does it itself"),),
)
