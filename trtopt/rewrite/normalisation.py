"""The pattern that all normalisations share: x·1/√(v + ε), and the constants applied after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtopt.rewrite.match import inputs_either_way, square_of
from trtopt.rewrite.reductions import axes_of, keeps_axes
from trtopt.rewrite.scope import Scope


@dataclass(frozen=True)
class Quotient:
    """`root` computes numerator/√(mean(square) + epsilon), the mean over `axes`; `inner` lie between."""

    root: Any
    numerator: Any
    square: Any
    axes: list[int]
    epsilon: float
    inner: list[Any]


def _root_of(scope: Scope, tensor: Any, power: float) -> tuple[Any, list[Any]] | None:
    """r and the nodes between, if `tensor` is √r (power ½) or 1/√r (power −½)."""
    node = scope.producer(tensor, "Pow", "Sqrt", "Reciprocal", "Div")
    if node is None:
        return None
    if node.op == "Pow" and scope.scalar(node.inputs[1]) == power:
        return node.inputs[0], [node]
    if power > 0:
        return (node.inputs[0], [node]) if node.op == "Sqrt" else None
    inverts = node.op == "Reciprocal" or (node.op == "Div" and scope.scalar(node.inputs[0]) == 1)
    below = _root_of(scope, node.inputs[-1], 0.5) if inverts else None
    return None if below is None else (below[0], [node, *below[1]])


def quotient_at(scope: Scope, node: Any) -> Quotient | None:
    """The normalisation whose last step is `node`, a Div or Mul."""
    sides = [tuple(node.inputs)] if node.op == "Div" else list(inputs_either_way(node))
    for numerator, other in sides:
        under = _root_of(scope, other, 0.5 if node.op == "Div" else -0.5)
        plus = None if under is None else scope.producer(under[0], "Add")
        if under is None or plus is None:
            continue
        for variance, constant in inputs_either_way(plus):
            epsilon, mean = scope.scalar(constant), scope.producer(variance, "ReduceMean")
            squared = None if mean is None else square_of(scope, mean.inputs[0])
            axes = None if mean is None else axes_of(scope, mean)
            if mean is None or squared is None or not axes or epsilon is None or not keeps_axes(mean):
                continue
            inner = [*under[1], plus, mean, mean.inputs[0].inputs[0]]
            return Quotient(node, numerator, squared, axes, epsilon, inner)
    return None


def centred(scope: Scope, found: Quotient) -> tuple[Any, list[Any]] | None:
    """x and the nodes between, if numerator and square are both x − mean(x) over the same axes."""
    minus = scope.producer(found.numerator, "Sub")
    mean = None if minus is None else scope.producer(minus.inputs[1], "ReduceMean")
    if minus is None or mean is None or found.square is not found.numerator:
        return None
    same = mean.inputs[0] is minus.inputs[0] and axes_of(scope, mean) == found.axes and keeps_axes(mean)
    return (minus.inputs[0], [minus, mean]) if same else None


@dataclass(frozen=True)
class Affine:
    """The constants multiplied with and added to a result, if any, and the last node of it all."""

    last: Any
    inner: list[Any]
    scale: Any | None
    shift: Any | None


def affine_after(scope: Scope, node: Any) -> Affine:
    """Mul by a constant and Add of a constant that follow `node` and nothing else does."""
    found = Affine(node, [], None, None)
    for op in ("Mul", "Add"):
        user = scope.only_use(found.last.outputs[0], op)
        other = (
            None if user is None else next((item for item in user.inputs if scope.is_constant(item)), None)
        )
        if user is None or other is None or scope.value(other) is None:
            continue
        inner = [*found.inner, found.last]
        scale, shift = (other, found.shift) if op == "Mul" else (found.scale, other)
        found = Affine(user, inner, scale, shift)
    return found
