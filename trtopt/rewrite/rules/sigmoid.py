"""1/(1 + e^(−x)) → Sigmoid(x), and x/(1 + e^(−x)) → x·Sigmoid(x).

TensorRT has the activation, and fuses x·Sigmoid(x) (SiLU, Swish) into the epilogue of a convolution.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtopt.rewrite.evidence import layers, quantises
from trtopt.rewrite.match import why_not_one_node, with_scalar
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _argument(scope: Scope, tensor: Any) -> tuple[Any, list[Any]] | None:
    """x and the nodes between, if `tensor` is 1 + e^(−x)."""
    plus = scope.producer(tensor, "Add")
    power_of = with_scalar(scope, plus, 1.0, 0.0) if plus is not None else None
    power = scope.producer(power_of[0], "Exp") if power_of is not None else None
    minus = scope.producer(power.inputs[0], "Neg", "Mul") if power is not None else None
    if minus is None:
        return None
    negated = (minus.inputs[0], -1.0) if minus.op == "Neg" else with_scalar(scope, minus, -1.0, 0.0)
    return (negated[0], [plus, power, minus]) if negated is not None else None


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Div", "Reciprocal"):
        found = _argument(scope, node.inputs[-1])
        if found is None:
            continue
        alone = node.op == "Reciprocal" or scope.scalar(node.inputs[0]) == 1
        if alone or node.inputs[0] is found[0]:
            yield Match(node, {"source": found[0], "inner": found[1], "alone": alone})


def _check(scope: Scope, match: Match) -> str | None:
    return why_not_one_node(scope, match.parts["source"], match.node, match.parts["inner"])


def _apply(scope: Scope, match: Match) -> None:
    node, source = match.node, match.parts["source"]
    if match.parts["alone"]:
        scope.replace(node, "Sigmoid", [source])
    else:
        scope.replace(node, "Mul", [source, scope.compute(node, "Sigmoid", [source], source)])


RULE = Rule(
    "sigmoid",
    "N",
    "Sigmoid and SiLU in the convolution's epilogue",
    _find,
    _check,
    _apply,
    stage=Stage.ACTIVATION,
    evidence=(layers("does it itself"), quantises("the activation is known as one that fuses")),
)
