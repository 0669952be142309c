"""Shape(x) whose axes are known → a constant; also Gather or Slice of known axes out of a Shape.

Honours Shape's `start` and `end` (opset 15). Axes that stay dynamic stay computed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trtopt.rewrite.axes import picked_axes
from trtopt.rewrite.evidence import layers, quantises
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Shape", "Gather", "Slice"):
        picked = None if scope.is_fixed(node.outputs[0]) else picked_axes(scope, node)
        if picked is None:
            continue
        source, places = picked
        if all(isinstance(source.shape[place], int) for place in np.ravel(places)):
            yield Match(node, {"value": np.asarray(np.array(source.shape, dtype=object)[places], np.int64)})


def _check(scope: Scope, match: Match) -> str | None:
    given = [tensor for tensor in match.node.inputs[1:] if not tensor.is_empty()]
    if not all(scope.is_constant(tensor) for tensor in given):
        return "an index is computed"
    return None


def _apply(scope: Scope, match: Match) -> None:
    out = match.node.outputs[0]
    scope.bypass(match.node, scope.constant(np.asarray(match.parts["value"], np.int64), out.name))


RULE = Rule(
    "fold-shapes",
    "B",
    "no shape layers",
    _find,
    _check,
    _apply,
    stage=Stage.CLEANING,
    after=("plain-shape",),
    evidence=(layers("does it itself"), quantises("pads that are computed of shapes go into convolutions")),
)
