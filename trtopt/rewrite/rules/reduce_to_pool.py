"""ReduceMean over all spatial axes with keepdims, outside normalisations → GlobalAveragePool.

Both are the mean over H×W (and D). TensorRT then has a pooling layer, which fuses with its neighbours and has
INT8 kernels; a Reduce has neither. The means of a normalisation stay: builders know it by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtopt.rewrite.evidence import layers, quantises
from trtopt.rewrite.match import axes_of, keeps_axes, square_of
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("ReduceMean"):
        rank, axes = scope.rank(node.inputs[0]), axes_of(scope, node)
        if rank in (4, 5) and axes == list(range(2, rank)):
            yield Match(node)


def _check(scope: Scope, match: Match) -> str | None:
    if not keeps_axes(match.node):
        return "the axes are dropped, which a pool cannot do"
    if not scope.is_float(match.node.inputs[0]):
        return "the type is not FP32 or FP16"
    if _normalises(scope, match.node):
        return "it is the mean or the variance of a normalisation"
    return None


def _normalises(scope: Scope, node: Any) -> bool:
    source, users = node.inputs[0], node.outputs[0].outputs
    centres = any(scope.is_one_of(user, "Sub") and user.inputs[0] is source for user in users)
    return centres or square_of(scope, source) is not None


def _apply(scope: Scope, match: Match) -> None:
    scope.replace(match.node, "GlobalAveragePool", [match.node.inputs[0]])


RULE = Rule(
    "reduce-to-pool",
    "N",
    "Reduce→Pooling",
    _find,
    _check,
    _apply,
    stage=Stage.REDUCTION,
    evidence=(layers("does it itself"), quantises("the pool in INT8")),
)
