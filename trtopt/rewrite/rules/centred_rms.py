"""RMSNormalization(x − mean(x), γ) → LayerNormalization(x, γ).

PyTorch's exporter fuses the second half of a LayerNorm without β like this at opset 23. TensorRT maps
LayerNormalization to INormalization, and every version reads it; RMSNormalization neither.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.rewrite.match import axes_of, keeps_axes, why_not_one_node
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("RMSNormalization"):
        minus = scope.producer(node.inputs[0], "Sub")
        mean = None if minus is None else scope.producer(minus.inputs[1], "ReduceMean")
        rank = scope.rank(node.inputs[0])
        if minus is None or mean is None or rank is None or mean.inputs[0] is not minus.inputs[0]:
            continue
        if axes_of(scope, mean) == list(range(node.attrs.get("axis", -1) % rank, rank)) and keeps_axes(mean):
            yield Match(node, {"source": minus.inputs[0], "inner": [minus, mean]})


def _check(scope: Scope, match: Match) -> str | None:
    if scope.element(match.node.inputs[1]) != scope.element(match.parts["source"]):
        return "the scale has another type, which LayerNormalization does not allow"
    return why_not_one_node(scope, match.parts["source"], match.node, match.parts["inner"])


def _apply(scope: Scope, match: Match) -> None:
    inputs = [match.parts["source"], match.node.inputs[1]]
    scope.replace(match.node, "LayerNormalization", inputs, dict(match.node.attrs))


RULE = Rule(
    "centred-rms",
    "N",
    "INormalization, moments in FP32",
    _find,
    _check,
    _apply,
    stage=Stage.NORMALISATION,
    after=("rms-norm",),
)
