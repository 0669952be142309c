"""Cast(Cast(x, middle), last) → Cast(x, last), if the middle type holds every value of x's type.

float16 → float32 → float64, int32 → int64 → float32: the middle step loses nothing, so it can go. A middle
type that is narrower rounds or clips, and stays.
"""

from __future__ import annotations

import numpy as np
import onnx

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.match import behind
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _check(scope: Scope, match: Match) -> str | None:
    source = scope.dtype(match.parts["first"].inputs[0])
    middle = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(match.parts["first"].attrs["to"]))
    if source is None or middle.kind not in "fiub":
        return "a type is unknown to NumPy"
    rounds = source.kind in "iu" and source.itemsize == 8 and middle.kind == "f"  # NumPy calls it safe
    if middle.kind == "b" or rounds or not np.can_cast(source, middle, "safe"):
        return f"{middle} is narrower than {source}: the first cast changes values"
    return None


def _apply(scope: Scope, match: Match) -> None:
    scope.set_input(match.node, 0, match.parts["first"].inputs[0])


RULE = Rule(
    "cast-chain",
    "B",
    "fewer reformats between kernels",
    behind(("Cast",), "Cast"),
    _check,
    _apply,
    stage=Stage.CLEANING,
    after=("erase-arithmetic",),
    evidence=(layers("one layer less"),),
)
