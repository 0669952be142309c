"""CastLike(x, y) → Cast(x, type of y), where that type is known.

PyTorch's newer exporter writes it behind most constants. As a Cast it folds with them; TensorRT's parser
takes CastLike too, but as one more layer.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from trtopt.rewrite.evidence import builds
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("CastLike"):
        yield Match(node)


def _check(scope: Scope, match: Match) -> str | None:
    return "the type to cast to is unknown" if scope.dtype(match.node.inputs[1]) is None else None


def _apply(scope: Scope, match: Match) -> None:
    node = match.node
    code = onnx.helper.np_dtype_to_tensor_dtype(scope.dtype(node.inputs[1]))
    scope.replace(node, "Cast", [node.inputs[0]], {"to": code})


RULE = Rule(
    "cast-like",
    "B",
    "constants that fold",
    _find,
    _check,
    _apply,
    stage=Stage.CLEANING,
    evidence=(builds("builds only with it, no importer for CastLike"),),
)
