"""Clip(x + 3, 0, 6)/6 → HardSigmoid(x, α = 1/6, β = 1/2); times x it is TensorRT's form of HardSwish.

HardSigmoid is max(0, min(1, αx + β)) and (x + 3)/6 = x/6 + 1/2. Also Clip(x/6 + 1/2, 0, 1) and
x·Clip(x + 3, 0, 6)/6, whose division is moved onto the clipped factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtopt.rewrite.evidence import layers, quantises
from trtopt.rewrite.match import inputs_either_way, why_not_one_node, with_scalar
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _clipped(scope: Scope, tensor: Any) -> tuple[Any, list[Any]] | None:
    """x and the nodes between, if `tensor` is Clip(x + 3, 0, 6)."""
    clip = scope.producer(tensor, "Clip")
    found = None if clip is None else _shifted(scope, clip, 3.0)
    return None if found is None else (found[0], [clip, found[1]])


def _shifted(scope: Scope, clip: Any, shift: float) -> tuple[Any, Any] | None:
    """y and the node between, if `clip` is Clip(y + shift, 0, 2·shift)."""
    bounds = [scope.scalar(item) for item in clip.inputs[1:3]]
    if not bounds:
        bounds = [clip.attrs.get("min"), clip.attrs.get("max")]
    plus = scope.producer(clip.inputs[0], "Add")
    found = with_scalar(scope, plus, shift, 0.0) if plus is not None else None
    return (found[0], plus) if found is not None and bounds == [0.0, 2 * shift] else None


def _sixth(scope: Scope, node: Any) -> Any | None:
    """y, if the node is y/6."""
    found = with_scalar(scope, node, 6.0, 0.0) if node.op == "Div" else with_scalar(scope, node, 1 / 6)
    return None if found is None else found[0]


def _find(scope: Scope) -> Iterator[Match]:
    for clip in scope.nodes("Clip"):
        shifted = _shifted(scope, clip, 0.5)
        scaled = None if shifted is None else scope.producer(shifted[0], "Div", "Mul")
        source = None if scaled is None else _sixth(scope, scaled)
        if shifted is not None and source is not None:
            yield Match(clip, {"source": source, "inner": [shifted[1], scaled], "times": None})
    for node in scope.nodes("Div", "Mul"):
        numerator = _sixth(scope, node)
        if numerator is None:
            continue
        found = _clipped(scope, numerator)
        if found is not None:
            yield Match(node, {"source": found[0], "inner": found[1], "times": None})
            continue
        product = scope.producer(numerator, "Mul")
        for clipped, other in inputs_either_way(product) if product is not None else ():
            found = _clipped(scope, clipped)
            if found is not None:
                yield Match(node, {"source": found[0], "inner": [*found[1], product], "times": other})
                break


def _check(scope: Scope, match: Match) -> str | None:
    if not scope.is_float(match.parts["source"]):
        return "the type is not FP32 or FP16"
    return why_not_one_node(scope, match.parts["source"], match.node, match.parts["inner"])


def _apply(scope: Scope, match: Match) -> None:
    node, source, times = match.node, match.parts["source"], match.parts["times"]
    attrs = {"alpha": 1 / 6, "beta": 0.5}
    if times is None:
        scope.replace(node, "HardSigmoid", [source], attrs)
    else:
        scope.replace(node, "Mul", [times, scope.compute(node, "HardSigmoid", [source], source, **attrs)])


RULE = Rule(
    "hard-sigmoid",
    "N",
    "HardSwish in the convolution's epilogue",
    _find,
    _check,
    _apply,
    stage=Stage.ACTIVATION,
    evidence=(layers("does it itself"), quantises("the activation is known as one that fuses")),
)
