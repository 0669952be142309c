"""x/√(mean(x²) + ε)·γ over the last axis → RMSNormalization(x, γ).

The operator is standard from opset 23 on; TensorRT reads that opset from version 11 on.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.rewrite.match import why_not_one_node
from trtopt.rewrite.normalisation import affine_after, quotient_at
from trtopt.rewrite.rule import Match, Rule
from trtopt.rewrite.scope import Scope

_OPSET = 23


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Div", "Mul"):
        found = quotient_at(scope, node)
        if found is None or found.square is not found.numerator or scope.producer(found.numerator, "Sub"):
            continue
        user = scope.only_use(node.outputs[0], "Mul")
        rank = scope.rank(found.numerator)
        if user is not None and rank is not None and found.axes == [rank - 1]:
            affine = affine_after(scope, node)
            yield Match(user, {"found": found, "scale": affine.scale, "inner": [*found.inner, node]})


def _check(scope: Scope, match: Match) -> str | None:
    scale, found = match.parts["scale"], match.parts["found"]
    if scope.target.opset < _OPSET:
        return f"TensorRT {scope.target.name} does not read RMSNormalization"
    if scope.opset < _OPSET:
        return f"RMSNormalization needs opset {_OPSET}, the model has {scope.opset}"
    if scale is None or tuple(scale.shape) != (found.numerator.shape[-1],):
        return "there is no constant scale over the last axis"
    return why_not_one_node(scope, found.numerator, match.node, match.parts["inner"])


def _apply(scope: Scope, match: Match) -> None:
    found = match.parts["found"]
    attrs = {"axis": -1, "epsilon": found.epsilon}
    scope.replace(match.node, "RMSNormalization", [found.numerator, match.parts["scale"]], attrs)


RULE = Rule(
    "rms-norm",
    "N",
    "one normalisation kernel, moments in FP32",
    _find,
    _check,
    _apply,
    audit="8.6 does not read it",
)
