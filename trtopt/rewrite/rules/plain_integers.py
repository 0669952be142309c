"""Sign, Relu and Pow of integers → Clip(−1, 1), Clip(0) and products, which TensorRT 8.6 imports.

Its parser takes these operators for floating-point numbers alone. DeBERTa has the sign of a distance.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trtopt.rewrite.evidence import PARSER_8_6, builds
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope
from trtopt.targets import targets_where

_BOUNDS = {"Sign": (-1, 1), "Relu": (0,)}
_OPSET = 12
"""The oldest with a Clip of integers."""


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Pow", *_BOUNDS):
        if scope.dtype(node.inputs[0]) in (np.int32, np.int64):
            yield Match(node)


def _check(scope: Scope, match: Match) -> str | None:
    if match.node.op == "Pow":
        return None if scope.scalar(match.node.inputs[1]) in (2, 3) else "the exponent is neither 2 nor 3"
    return None if scope.opset >= _OPSET else f"opset {scope.opset} has no Clip of integers"


def _apply(scope: Scope, match: Match) -> None:
    node, number = match.node, match.node.inputs[0]
    if node.op == "Pow":
        is_cube = scope.scalar(node.inputs[1]) == 3
        first = scope.compute(node, "Mul", [number, number], number) if is_cube else number
        scope.replace(node, "Mul", [first, number])
    else:
        dtype = scope.dtype(number)
        bounds = [scope.constant(np.array(one, dtype), f"{node.name}/bound") for one in _BOUNDS[node.op]]
        scope.replace(node, "Clip", [number, *bounds])


RULE = Rule(
    "plain-integers",
    "B",
    "models with the sign of integers, such as DeBERTa",
    _find,
    _check,
    _apply,
    stage=Stage.PLUGINS,
    targets=targets_where(lambda target: not target.integer_functions),
    evidence=(builds("its parser takes them for floats alone", source=PARSER_8_6),),
)
