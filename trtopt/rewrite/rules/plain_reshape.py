"""Reshape(x, computed shape) → Reshape(x, constant), where every axis of the result can be told in advance.

In a Reshape's constant, 0 copies the axis of x at the same place and −1 is what is left over. So an axis that
is a number, one that has the length of x's axis there, and one more of any kind can be written down. The
Shape, Gather and Concat nodes that computed the shape then die: no shape layers, and TensorRT sees which axes
stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trtopt.rewrite.axes import Axes, length_asked
from trtopt.rewrite.rule import Match, Rule
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    axes = Axes(scope)
    for node in scope.nodes():
        if node.op == "Reshape" and not scope.is_constant(node.inputs[1]):
            parts = _parts(scope, node)
            if parts is not None and scope.rank(node.inputs[0]) is not None:
                shape = [_axis(scope, axes, node, *part) for part in enumerate(parts)]
                yield Match(
                    node, {"shape": shape, "empty": 0 in [part for part in parts if isinstance(part, int)]}
                )
        axes.learn(node)


def _parts(scope: Scope, node: Any) -> list[Any] | None:
    """What the shape is made of, an axis each: a number, a tensor that holds it, or None; None if unclear."""
    told = node.outputs[0].shape
    maker = scope.producer(node.inputs[1], "Concat")
    if maker is None:
        return None if told is None else [axis if isinstance(axis, int) else None for axis in told]
    parts: list[Any] = []
    for part in maker.inputs:
        value = scope.value(part)
        parts += [part] if value is None else [int(axis) for axis in value.reshape(-1)]
    unclear = any(not isinstance(part, int) and tuple(part.shape or ()) != (1,) for part in parts)
    return None if unclear or (told is not None and len(told) != len(parts)) else parts


def _axis(scope: Scope, axes: Axes, node: Any, place: int, part: Any) -> int:
    """An axis as a Reshape's constant has it."""
    told = node.outputs[0].shape[place] if node.outputs[0].shape else None
    if isinstance(part, int):
        return part
    if isinstance(told, int):
        return told
    before = node.inputs[0]
    if place < len(before.shape):
        asked = None if part is None else length_asked(scope, part)
        source = axes.of(before, place)
        if asked is not None and axes.same(axes.of(*asked), source):
            return 0
        if told is not None and isinstance(told, str) and told == before.shape[place]:
            return 0
    return -1


def _check(scope: Scope, match: Match) -> str | None:
    if match.parts["shape"].count(-1) > 1:
        return "more than one axis of the result is neither a number nor copied in place"
    if match.node.attrs.get("allowzero") and match.parts["empty"]:
        return "allowzero is set, and an axis may be empty"
    return None


def _apply(scope: Scope, match: Match) -> None:
    node = match.node
    constant = scope.constant(np.array(match.parts["shape"], np.int64), f"{node.name}/shape")
    scope.set_input(node, 1, constant)
    node.attrs.pop("allowzero", None)
    if node.outputs[0].shape is None:
        node.outputs[0].shape = [None] * len(match.parts["shape"])


RULE = Rule("plain-reshape", "B", "no shape layers", _find, _check, _apply)
