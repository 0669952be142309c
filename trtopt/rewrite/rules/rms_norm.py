"""x/√(mean(x²) + ε)·γ over the last axis, also between casts to FP32 and back → RMSNormalization(x, γ).

γ may be missing. Where FP16 or BF16 is cast to FP32 in front of the square, and back in front of γ, as in
language models, the casts go too: the operator has them by definition. It is standard from opset 23 on, which
TensorRT reads from version 11 on, and 10 in its last releases alone. TensorRT-RTX 1.7's parser writes the
operator out again, casts and all: there nothing is won but fewer nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.match import why_not_one_node
from trtopt.rewrite.normalisation import affine_after, affine_in_half, quotient_at, spread, spreads
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope

_OPSET = 23


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Div", "Mul"):
        found = quotient_at(scope, node)
        if found is None or found.square is not found.numerator or scope.producer(found.numerator, "Sub"):
            continue
        source, rank = found.numerator, scope.rank(found.numerator)
        if rank is not None and found.axes == [rank - 1]:
            half = affine_in_half(scope, found, source, ("Mul",))
            affine = half or affine_after(scope, node, source, found.scale, ("Mul",))
            inner = [*found.inner, *affine.inner]
            yield Match(affine.last, {"found": found, "affine": affine, "inner": inner})


def _check(scope: Scope, match: Match) -> str | None:
    found, affine = match.parts["found"], match.parts["affine"]
    if scope.target.operator_opset < _OPSET:
        known = f"TensorRT {scope.target.name} is known to read {scope.target.operator_opset}"
        return f"RMSNormalization is of opset {_OPSET}, {known}"
    if scope.opset < _OPSET:
        return f"RMSNormalization needs opset {_OPSET}, the model has {scope.opset}: export it at {_OPSET}"
    length = found.numerator.shape[-1]
    if not isinstance(length, int):
        return "the normalised axis is dynamic"
    if not scope.is_float(found.numerator):
        return "the type is not FP32 or FP16"
    if not spreads(scope, affine.scale, (length,)):
        return "the scale varies along another axis"
    return why_not_one_node(scope, found.numerator, match.node, match.parts["inner"])


def _apply(scope: Scope, match: Match) -> None:
    found, affine = match.parts["found"], match.parts["affine"]
    shape = (found.numerator.shape[-1],)
    scale = spread(scope, affine.scale, shape, affine.source, f"{match.node.name}/scale")
    attrs = {"axis": -1, "epsilon": found.epsilon}
    scope.replace(match.node, "RMSNormalization", [affine.source, scale], attrs)


RULE = Rule(
    "rms-norm",
    "N",
    "one normalisation kernel, moments in FP32",
    _find,
    _check,
    _apply,
    stage=Stage.NORMALISATION,
    evidence=(layers("does not read it; RTX's parser writes it out again"),),
)
