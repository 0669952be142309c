"""Unused optional outputs are dropped: MaxPool's indices, Dropout's mask.

TensorRT's parser has no second output for most of these. Only trailing outputs can go.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.rewrite.evidence import AUDIT_RTX, BUILT_HERE, DOCUMENTED, MAXPOOL, builds
from trtopt.rewrite.rule import Match, Rule, Stage, always
from trtopt.rewrite.scope import Scope

_OPTIONAL = {"MaxPool": 1, "Dropout": 1, "LayerNormalization": 1}


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes(*_OPTIONAL):
        last = node.outputs[-1]
        if len(node.outputs) > _OPTIONAL[node.op] and not last.outputs and not scope.is_fixed(last):
            yield Match(node)


def _apply(scope: Scope, match: Match) -> None:
    node = match.node
    while len(node.outputs) > _OPTIONAL[node.op] and not (
        node.outputs[-1].outputs or scope.is_fixed(node.outputs[-1])
    ):
        del node.outputs[-1]


RULE = Rule(
    "drop-unused",
    "B",
    "operators in the form that the parser takes",
    _find,
    always,
    _apply,
    stage=Stage.CLEANING,
    after=("fold-constants",),
    evidence=(
        builds("builds only with it, refuses MaxPool with two outputs"),
        builds("refuses MaxPool with two outputs", BUILT_HERE, AUDIT_RTX),
        builds("documented: MaxPool's indices are not supported", DOCUMENTED, MAXPOOL),
    ),
)
