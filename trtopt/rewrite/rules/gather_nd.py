"""GatherND(x, Unsqueeze(i, −1)) → Gather(x, i, axis=0).

Indices of one number each pick rows. torch.export writes `table[index]` so: anchors, relative positions.
Gather is the plainer kernel, and the one that `narrow-indices` and `gather-axis0` know.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("GatherND"):
        wider = scope.producer(node.inputs[1], "Unsqueeze")
        if wider is not None and _adds_the_last_axis(scope, wider):
            yield Match(node, {"indices": wider.inputs[0]})


def _adds_the_last_axis(scope: Scope, wider: Any) -> bool:
    axes, rank = scope.integers(wider, "axes", 1), scope.rank(wider.outputs[0])
    return axes is not None and rank is not None and [axis % rank for axis in axes] == [rank - 1]


def _check(scope: Scope, match: Match) -> str | None:
    return "Gather has no batch axes" if match.node.attrs.get("batch_dims", 0) else None


def _apply(scope: Scope, match: Match) -> None:
    scope.replace(match.node, "Gather", [match.node.inputs[0], match.parts["indices"]], {"axis": 0})


RULE = Rule(
    "gather-nd",
    "B",
    "a plain Gather",
    _find,
    _check,
    _apply,
    stage=Stage.SELECTION,
    after=("mask-triangle",),
    evidence=(layers("does it itself"),),
)
