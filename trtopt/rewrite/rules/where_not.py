"""Where(Not(c), x, y) → Where(c, y, x).

masked_fill(~mask) is exported so. One layer less in front of the Softmax, and `mask-add` and `attention` see
the mask itself. Not for TensorRT 8.6, which compiles Not, Where and Softmax into one kernel and leaves the
Softmax out where Not is missing.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.rule import Match, Rule, Stage, always
from trtopt.rewrite.scope import Scope
from trtopt.targets import targets_where


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Where"):
        negation = scope.producer(node.inputs[0], "Not")
        if negation is not None:
            yield Match(node, {"condition": negation.inputs[0]})


def _apply(scope: Scope, match: Match) -> None:
    _, chosen, other = match.node.inputs
    scope.replace(match.node, "Where", [match.parts["condition"], other, chosen])


RULE = Rule(
    "where-not",
    "B",
    "one elementwise layer less",
    _find,
    always,
    _apply,
    stage=Stage.SELECTION,
    default=targets_where(lambda target: not target.needs_not_for_softmax),
    evidence=(layers("does not fuse, one layer more"),),
)
