"""Relu∘Relu, Clip∘Clip, Relu∘Clip, Clip∘Relu → one.

Clip(Clip(x, a, b), c, d) = Clip(x, min(max(a, c), d), min(max(b, c), d)) for a ≤ b and c ≤ d; Relu is Clip
with a = 0 and no upper bound. Enables TensorRT's ReLU + ReLU fusion in the forms that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trtopt.rewrite.rule import Match, Rule
from trtopt.rewrite.scope import Scope


def _bounds(scope: Scope, node: Any) -> tuple[float, float] | None:
    if node.op == "Relu":
        return 0.0, np.inf
    low, high = float(node.attrs.get("min", -np.inf)), float(node.attrs.get("max", np.inf))
    given = [scope.scalar(tensor) if not tensor.is_empty() else np.nan for tensor in node.inputs[1:]]
    if None in given:
        return None
    values = [np.nan if item is None else item for item in (*given, np.nan, np.nan)]
    return (low if np.isnan(values[0]) else values[0]), (high if np.isnan(values[1]) else values[1])


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Relu", "Clip"):
        first = scope.producer(node.inputs[0], "Relu", "Clip")
        if first is not None:
            yield Match(node, {"first": first})


def _check(scope: Scope, match: Match) -> str | None:
    first = match.parts["first"]
    if scope.only_use(first.outputs[0]) is None:
        return "the inner result is used elsewhere"
    inner, outer = _bounds(scope, first), _bounds(scope, match.node)
    if inner is None or outer is None:
        return "a bound is computed"
    if inner[0] > inner[1] or outer[0] > outer[1]:
        return "a lower bound exceeds its upper bound"
    if not scope.is_float(first.inputs[0]):
        return "the type is not floating-point"
    if scope.opset < 11 and "Relu" in (first.op, match.node.op) and first.op != match.node.op:
        return "Clip takes its bounds as inputs from opset 11 on"
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
    elif scope.opset < 11:
        scope.replace(node, "Clip", [source], {"min": low, "max": high})
    else:
        dtype = scope.dtype(source)
        inputs = [source, scope.constant(np.array(low, dtype), f"{node.name}/min")]
        scope.replace(node, "Clip", [*inputs, scope.constant(np.array(high, dtype), f"{node.name}/max")])


RULE = Rule(
    "clamp-chain",
    "B",
    "ReLU+ReLU, one activation in the epilogue",
    _find,
    _check,
    _apply,
    audit="8.6 does it itself",
)
