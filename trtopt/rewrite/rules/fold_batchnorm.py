"""Conv/ConvTranspose/Gemm followed by BatchNormalization → the first with other weights.

y = γ·(W·x + b − μ)/√(σ² + ε) + β = (s·W)·x + (s·(b − μ) + β), with s = γ/√(σ² + ε) per output channel.
Computed in float64 and rounded once. TensorRT fuses the pair by itself, but Q/DQ placement, scales and INT8
ranges are right only if the weights have been folded before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trtopt.rewrite.affine import WEIGHTED, scale_weights, why_not_hold, why_not_scale
from trtopt.rewrite.evidence import layers, quantises
from trtopt.rewrite.match import behind
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Array, Scope


def _check(scope: Scope, match: Match) -> str | None:
    node, first = match.node, match.parts["first"]
    if node.attrs.get("training_mode", 0) or len(node.outputs) > 1:
        return "it is in training mode"
    if any(scope.value(tensor) is None for tensor in node.inputs[1:5]):
        return "its statistics are not constant"
    if scope.only_use(first.outputs[0]) is None:
        return f"the result of {first.op} is used elsewhere, or is an output"
    return why_not_scale(scope, first) or why_not_hold(scope, first, *_factor_and_shift(scope, node))


def _factor_and_shift(scope: Scope, node: Any) -> tuple[Array, Array]:
    gamma, beta, mean, variance = (np.asarray(scope.value(tensor), np.float64) for tensor in node.inputs[1:5])
    with np.errstate(all="ignore"):  # a negative variance makes NaN, which declines
        factor = gamma / np.sqrt(variance + float(node.attrs.get("epsilon", 1e-5)))
        return factor, beta - factor * mean


def _apply(scope: Scope, match: Match) -> None:
    node, first = match.node, match.parts["first"]
    scale_weights(scope, first, *_factor_and_shift(scope, node))
    scope.bypass(node, first.outputs[0])


RULE = Rule(
    "fold-batchnorm",
    "N",
    "right scales, one kernel",
    behind(("BatchNormalization",), *WEIGHTED),
    _check,
    _apply,
    stage=Stage.CONVOLUTION,
    after=("pad-into-conv",),
    evidence=(
        layers("no Scale behind Gemm; behind convolutions it does it itself"),
        quantises("right scales: the weights are the folded ones"),
    ),
)
