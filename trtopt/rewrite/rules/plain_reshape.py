"""Reshape(x, computed shape) → Reshape(x, constant), where every axis of the result is known in advance.

In a Reshape's constant, 0 copies the axis of x at the same place and −1 is what is left over. So an axis that
is a number, one that has the length of x's axis there, and one more of any kind can be written down. What is
left over is a number too if all that x has beyond the copied axes is. The Shape, Gather, Slice and Concat
nodes that computed the shape then die: no shape layers, and TensorRT sees which axes stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from trtopt.rewrite.axes import Axes, Origin, lengths_requested
from trtopt.rewrite.evidence import layers
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope

_Part = int | Origin | None
"""An axis in the shape operand: a number, the length of a tensor's axis, or unknown."""


def _find(scope: Scope) -> Iterator[Match]:
    axes = Axes(scope)
    for node in scope.nodes():
        if scope.is_one_of(node, "Reshape") and not scope.is_constant(node.inputs[1]):
            parts = _parts(scope, node)
            if parts is not None and scope.rank(node.inputs[0]) is not None:
                shape = [_axis(axes, node, *part) for part in enumerate(parts)]
                yield Match(
                    node, {"shape": _without_minus_one(shape, node.inputs[0].shape), "empty": 0 in parts}
                )
        axes.learn(node)


def _parts(scope: Scope, node: Any) -> list[_Part] | None:
    """What the shape is made of, an axis each; None if not even their number is clear."""
    declared = node.outputs[0].shape
    maker = scope.producer(node.inputs[1], "Concat")
    parts: list[_Part] = []
    for tensor in maker.inputs if maker is not None else [node.inputs[1]]:
        value, requested = scope.value(tensor), lengths_requested(scope, tensor)
        if value is not None:
            parts += [int(axis) for axis in value.reshape(-1)]
        elif requested is not None:
            parts += [_length(*origin) for origin in requested]
        elif tuple(tensor.shape or ()) == (1,):
            parts.append(None)
        else:
            return None if maker is not None or declared is None else [None] * len(declared)
    return parts if declared is None or len(declared) == len(parts) else None


def _length(tensor: Any, place: int) -> _Part:
    """The length of an axis if it is known, else the axis."""
    length = tensor.shape[place]
    return length if isinstance(length, int) else (tensor, place)


def _axis(axes: Axes, node: Any, place: int, part: _Part) -> int:
    """An axis as a Reshape's constant has it."""
    declared = node.outputs[0].shape[place] if node.outputs[0].shape else None
    if isinstance(part, int):
        return part
    if isinstance(declared, int):
        return declared
    before = node.inputs[0]
    if place < len(before.shape):
        if part is not None and axes.same(axes.of(*part), axes.of(before, place)):
            return 0
        if declared is not None and isinstance(declared, str) and declared == before.shape[place]:
            return 0
    return -1


def _without_minus_one(shape: list[int], before: list[Any]) -> list[int]:
    """The shape with its -1 replaced by a number, where that is known."""
    copied = [place for place, axis in enumerate(shape) if axis == 0]
    left = [axis for place, axis in enumerate(before) if place not in copied]
    if shape.count(-1) != 1 or not all(isinstance(axis, int) for axis in left):
        return shape
    rest = prod(left) // prod(axis for axis in shape if axis > 0)
    return [rest if axis == -1 else axis for axis in shape]


def _check(scope: Scope, match: Match) -> str | None:
    if match.parts["shape"].count(-1) > 1:
        return "more than one axis of the result is neither a number nor copied in place"
    if match.node.attrs.get("allowzero") and match.parts["empty"]:
        return "allowzero is set, and an axis may be empty"
    return None


def _apply(scope: Scope, match: Match) -> None:
    node, shape = match.node, match.parts["shape"]
    scope.set_input(node, 1, scope.constant(np.array(shape, np.int64), f"{node.name}/shape"))
    node.attrs.pop("allowzero", None)
    if node.outputs[0].shape is None:
        node.outputs[0].shape = [axis if axis > 0 else None for axis in shape]


RULE = Rule(
    "plain-reshape",
    "B",
    "no shape layers",
    _find,
    _check,
    _apply,
    stage=Stage.SHUFFLES,
    after=("transpose-reduce",),
    evidence=(layers("does it itself"),),
)
