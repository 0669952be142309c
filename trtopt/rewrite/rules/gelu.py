"""x·½·(1 + erf(x/√2)) → Gelu(x); ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))) → Gelu(x, approximate="tanh").

Both forms keep their kind: erf never becomes tanh or the other way round. Needs opset 20 and a TensorRT with
the activation (10 and later); on 8.6 the decomposed form is the very pattern that its GELU fusion looks for,
so it is not changed.
"""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.pattern import Op, rule, x
from trtopt.rewrite.rule import Stage
from trtopt.rewrite.scope import Scope

_CUBIC = 0.044715
_TANH = Op.Gelu(x, approximate="tanh")


def _why_not(scope: Scope, source: Any) -> str | None:
    if not scope.target.gelu:
        return f"TensorRT {scope.target.name} looks for the decomposed form, which is kept"
    if scope.opset < 20:
        return f"Gelu needs opset 20, the model has {scope.opset}: export it at 20"
    return None


RULE = rule(
    "gelu",
    "N",
    "GELU reduction and epilogue",
    (x * 0.5 * (Op.Erf(x * sqrt(0.5)) + 1), Op.Gelu(x, approximate="none")),
    (x * 0.5 * (Op.Tanh((x + x * x * x * _CUBIC) * sqrt(2 / pi)) + 1), _TANH),
    (x * 0.5 * (Op.Tanh(x * (x * x * _CUBIC + 1) * sqrt(2 / pi)) + 1), _TANH),
    why_not=_why_not,
    stage=Stage.ACTIVATION,
    evidence=(layers("does not read it"),),
)
