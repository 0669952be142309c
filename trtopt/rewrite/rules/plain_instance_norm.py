"""InstanceNormalization(x, γ, β) → (x − μ)/√(mean((x − μ)²) + ε)·γ + β in plain operators, moments in FP32.

For TensorRT 8.6 alone: its parser makes a plugin of the operator that calls cuDNN, so an engine cannot be
built where cuDNN is missing, and nothing fuses with a plugin. From 10 on the operator is TensorRT's own. Off
unless requested: with cuDNN at hand the plugin may be faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trtopt.rewrite.evidence import builds
from trtopt.rewrite.match import operands
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope

_FLOAT, _FLOAT16 = 1, 10
"""Element types as ONNX numbers them."""


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("InstanceNormalization"):
        yield Match(node)


def _check(scope: Scope, match: Match) -> str | None:
    source, *affine = match.node.inputs
    if scope.target.instance_norm:
        return f"TensorRT {scope.target.name} has the operator itself"
    if (scope.rank(source) or 0) < 3 or scope.element(source) not in (_FLOAT, _FLOAT16):
        return "the rank of its input is unknown, or its type is neither FP32 nor FP16"
    if any(scope.value(tensor) is None for tensor in affine):
        return "scale or bias are computed"
    return None


def _apply(scope: Scope, match: Match) -> None:
    node, (source, *affine) = match.node, match.node.inputs
    rank, name = len(source.shape), node.name
    wide = source
    if scope.dtype(source) == np.float16:
        wide = scope.compute(node, "Cast", [source], source, to=_FLOAT)
        wide.dtype = np.dtype(np.float32)

    def mean(tensor: Any) -> Any:
        inputs, attrs = operands(scope, "ReduceMean", tensor, list(range(2, rank)), True, name)
        return scope.compute(node, "ReduceMean", inputs, wide, **attrs)

    def constant(values: Any, like: str) -> Any:
        return scope.constant(np.asarray(values, np.float32), f"{name}/{like}")

    along = (-1, *(1,) * (rank - 2))
    scale, bias = (np.asarray(scope.value(tensor)).reshape(along) for tensor in affine)
    centred = scope.compute(node, "Sub", [wide, mean(wide)], wide)
    variance = mean(scope.compute(node, "Mul", [centred, centred], wide))
    epsilon = constant(node.attrs.get("epsilon", 1e-5), "epsilon")
    deviation = scope.compute(node, "Sqrt", [scope.compute(node, "Add", [variance, epsilon], wide)], wide)
    normal = scope.compute(node, "Div", [centred, deviation], wide)
    scaled = scope.compute(node, "Mul", [normal, constant(scale, "scale")], wide)
    if wide is source:
        scope.replace(node, "Add", [scaled, constant(bias, "bias")])
    else:
        shifted = scope.compute(node, "Add", [scaled, constant(bias, "bias")], wide)
        scope.replace(node, "Cast", [shifted], {"to": _FLOAT16})


RULE = Rule(
    "plain-instance-norm",
    "N",
    "an engine without cuDNN",
    _find,
    _check,
    _apply,
    stage=Stage.NORMALISATION,
    targets=(),
    evidence=(builds("without cuDNN it builds FP16 over three axes only with it"),),
)
