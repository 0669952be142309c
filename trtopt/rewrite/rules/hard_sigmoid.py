"""Clip(x + 3, 0, 6)/6 → HardSigmoid(x, α = 1/6, β = 1/2); times x it is TensorRT's form of HardSwish.

HardSigmoid is max(0, min(1, αx + β)) and (x + 3)/6 = x/6 + 1/2. Also Clip(x/6 + 1/2, 0, 1) and
x·Clip(x + 3, 0, 6)/6, whose division is moved onto the clipped factor.
"""

from __future__ import annotations

from typing import Any

from trtopt.rewrite.evidence import layers, quantises
from trtopt.rewrite.pattern import Op, rule, x, y
from trtopt.rewrite.rule import Stage
from trtopt.rewrite.scope import Scope

_SIX, _HARD = Op.Clip(x + 3, 0, 6), Op.HardSigmoid(x, alpha=1 / 6, beta=0.5)


def _why_not(scope: Scope, source: Any) -> str | None:
    return None if scope.is_float(source) else "the type is not FP32 or FP16"


RULE = rule(
    "hard-sigmoid",
    "N",
    "HardSwish in the convolution's epilogue",
    (_SIX / 6, _HARD),
    (Op.Clip(x / 6 + 0.5, 0, 1), _HARD),
    (y * _SIX / 6, y * _HARD),
    why_not=_why_not,
    stage=Stage.ACTIVATION,
    evidence=(layers("does it itself"), quantises("the activation is known as one that fuses")),
)
