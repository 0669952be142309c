"""Relu∘Relu, Clip∘Clip, Relu∘Clip, Clip∘Relu → one.

Clip(Clip(x, a, b), c, d) = Clip(x, min(max(a, c), d), min(max(b, c), d)) for a ≤ b and c ≤ d; Relu is Clip
with a = 0 and b = ∞. Enables TensorRT's ReLU + ReLU fusion in the forms that it does not know.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.match import behind
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope

_INPUTS_OPSET = 11


def _bounds(scope: Scope, node: Any) -> tuple[float, float] | None:
    if node.op == "Relu":
        return 0.0, np.inf
    # where none is given, ONNX has the largest number of the type (of FP32 in an attribute), which clamps ∞
    by_attribute = scope.opset < _INPUTS_OPSET
    widest = float(np.finfo(np.float32 if by_attribute else scope.dtype(node.inputs[0])).max)
    bounds = [float(node.attrs.get("min", -widest)), float(node.attrs.get("max", widest))]
    for place, tensor in enumerate(node.inputs[1:3]):
        if not tensor.is_empty():
            value = scope.scalar(tensor)
            if value is None or np.isnan(value):
                return None
            bounds[place] = value
    return bounds[0], bounds[1]


def _check(scope: Scope, match: Match) -> str | None:
    first = match.parts["first"]
    if scope.only_use(first.outputs[0]) is None:
        return "the inner result is used elsewhere"
    if not (scope.is_float(first.inputs[0]) and scope.is_float(match.node.inputs[0])):
        return "the type is not FP32 or FP16"
    inner, outer = _bounds(scope, first), _bounds(scope, match.node)
    if inner is None or outer is None:
        return "a bound is computed, or no number"
    if inner[0] > inner[1] or outer[0] > outer[1]:
        return "a lower bound exceeds its upper bound"
    if scope.opset < _INPUTS_OPSET and "Relu" in (first.op, match.node.op) and first.op != match.node.op:
        return f"Clip takes its bounds as inputs from opset {_INPUTS_OPSET} on"
    return None


def _apply(scope: Scope, match: Match) -> None:
    first, node = match.parts["first"], match.node
    inner, outer = _bounds(scope, first), _bounds(scope, node)
    if inner is None or outer is None:
        return
    low, high = (min(max(bound, outer[0]), outer[1]) for bound in inner)
    source = first.inputs[0]
    if (low, high) == (0.0, np.inf):
        scope.replace(node, "Relu", [source])
    elif scope.opset < _INPUTS_OPSET:
        scope.replace(node, "Clip", [source], {"min": low, "max": high})
    else:
        dtype = scope.dtype(source)
        inputs = [source, scope.constant(np.array(low, dtype), f"{node.name}/min")]
        scope.replace(node, "Clip", [*inputs, scope.constant(np.array(high, dtype), f"{node.name}/max")])


RULE = Rule(
    "clamp-chain",
    "B",
    "ReLU+ReLU, one activation in the epilogue",
    behind(("Relu", "Clip"), "Relu", "Clip"),
    _check,
    _apply,
    stage=Stage.CLEANING,
    after=("narrow-indices",),
    evidence=(layers("does it itself"),),
)
