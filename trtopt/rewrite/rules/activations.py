"""Activations that are written out become one operator."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

from trtopt.rewrite.match import axes_of, is_private, keeps_axes
from trtopt.rewrite.pattern import Op, rule_of_forms, x, y
from trtopt.rewrite.rule import RULES_ALONE, Verdict, at, faster, layers, quantizes, rule
from trtopt.rewrite.scope import Scope

# ── gelu ───────────────────────────────────────────────────────────────────────────────────────────────────

_CUBIC = 0.044715
_TANH = Op.Gelu(x, approximate="tanh")


def _why_not_gelu(scope: Scope, source: Any) -> str | None:
    if not scope.target.gelu:
        return f"TensorRT {scope.target.name} looks for the decomposed form, which is kept"
    if scope.opset < 20:
        return f"Gelu needs opset 20, the model has {scope.opset}: export it at 20"
    return None


gelu = rule_of_forms(
    "gelu",
    'x·½·(1 + erf(x/√2)) → Gelu(x); ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))) → Gelu(x, approximate="tanh")',
    "N",
    "GELU reduction and epilogue",
    (x * 0.5 * (Op.Erf(x * sqrt(0.5)) + 1), Op.Gelu(x, approximate="none")),
    (x * 0.5 * (Op.Tanh((x + x * x * x * _CUBIC) * sqrt(2 / pi)) + 1), _TANH),
    (x * 0.5 * (Op.Tanh(x * (x * x * _CUBIC + 1) * sqrt(2 / pi)) + 1), _TANH),
    why_not=_why_not_gelu,
    evidence=(layers("does not read it"),),
)
"""Both forms keep their kind: erf never becomes tanh or the other way round. Needs opset 20 and a TensorRT
with the activation (10 and later); on 8.6 the decomposed form is the very pattern that its GELU fusion
looks for, so it is not changed."""


# ── hard-sigmoid ───────────────────────────────────────────────────────────────────────────────────────────

_SIX, _HARD = Op.Clip(x + 3, 0, 6), Op.HardSigmoid(x, alpha=1 / 6, beta=0.5)


def _why_not_hard_sigmoid(scope: Scope, source: Any) -> str | None:
    return None if scope.is_float(source) else "the type is not FP32 or FP16"


hard_sigmoid = rule_of_forms(
    "hard-sigmoid",
    "Clip(x + 3, 0, 6)/6 → HardSigmoid(x, α = 1/6, β = 1/2); times x it is TensorRT's form of HardSwish",
    "N",
    "HardSwish in the convolution's epilogue",
    (_SIX / 6, _HARD),
    (Op.Clip(x / 6 + 0.5, 0, 1), _HARD),
    (y * _SIX / 6, y * _HARD),
    why_not=_why_not_hard_sigmoid,
    evidence=(layers("does it itself"), quantizes("the activation is known as one that fuses")),
)
"""HardSigmoid is max(0, min(1, αx + β)) and (x + 3)/6 = x/6 + 1/2. Also Clip(x/6 + 1/2, 0, 1) and x·Clip(x +
3, 0, 6)/6, whose division is moved onto the clipped factor."""


# ── sigmoid ────────────────────────────────────────────────────────────────────────────────────────────────

sigmoid = rule_of_forms(
    "sigmoid",
    "1/(1 + e^(−x)) → Sigmoid(x), and x/(1 + e^(−x)) → x·Sigmoid(x)",
    "N",
    "Sigmoid and SiLU in the convolution's epilogue",
    (1 / (Op.Exp(-x) + 1), Op.Sigmoid(x)),
    (x / (Op.Exp(-x) + 1), x * Op.Sigmoid(x)),
    evidence=(layers("does it itself"), quantizes("the activation is known as one that fuses")),
)


# ── softmax ────────────────────────────────────────────────────────────────────────────────────────────────


def _skip_shift(scope: Scope, tensor: Any, axes: list[int]) -> tuple[Any, list[Any]]:
    """x and the nodes between, if `tensor` is x − max x over `axes`; the tensor itself otherwise."""
    minus = scope.producer(tensor, "Sub")
    peak = None if minus is None else scope.producer(minus.inputs[1], "ReduceMax")
    if minus is None or peak is None or peak.inputs[0] is not minus.inputs[0]:
        return tensor, []
    return (
        (minus.inputs[0], [minus, peak])
        if axes_of(scope, peak) == axes and keeps_axes(peak)
        else (tensor, [])
    )


@rule(
    "Exp(x [− max x]) / ReduceSum(the same) over one axis → Softmax(x)",
    "N",
    "SoftMax+TopK, Scale+SoftMax",
    evidence=(
        layers("one kernel instead of three to six layers"),
        faster("four layers of attention -67.9% at 1, -70.1% at 32 by this rule alone", RULES_ALONE),
    ),
)
@at("Div")
def softmax(scope: Scope, node: Any) -> Verdict | None:
    """e^(x−m)/Σe^(x−m) = e^x/Σe^x for any m that does not vary along the axis.

    TensorRT knows SoftMax as a layer of its own, with fusions (SoftMax + TopK, Scale + SoftMax) and a kernel
    that does not overflow in FP16.
    """
    power, total = scope.producer(node.inputs[0], "Exp"), scope.producer(node.inputs[1], "ReduceSum")
    if power is None or total is None or total.inputs[0] is not power.outputs[0]:
        return None
    axes = axes_of(scope, total)
    if not axes:
        return None
    source, extra = _skip_shift(scope, power.inputs[0], axes)
    rank = scope.rank(source)
    if len(axes) != 1 or rank is None:
        return "it sums over several axes"
    if rank < 2:
        return "TensorRT's Softmax takes tensors of two axes or more"
    if scope.opset < 13 and axes[0] != rank - 1:
        return "below opset 13 Softmax flattens the axes after its own"
    if not keeps_axes(total):
        return "the sum's axis is dropped"
    if not is_private(scope, [power, total, *extra], node):
        return "an intermediate result is used elsewhere"
    return lambda: scope.replace(node, "Softmax", [source], {"axis": axes[0]})
