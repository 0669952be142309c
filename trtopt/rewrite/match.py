"""Pieces of patterns that several rules look for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trtopt.rewrite.scope import Scope

REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip


def axes_of(scope: Scope, node: Any) -> list[int] | None:
    """The axes that the node reduces, counted from the front and sorted; None if they are unknown."""
    rank = scope.rank(node.inputs[0])
    given = scope.integers(node, "axes", 1)
    if rank is None:
        return None
    if given is None:
        is_computed = operand(node, 1) is not None
        return None if is_computed or node.attrs.get("noop_with_empty_axes") else list(range(rank))
    if not given:
        return [] if node.attrs.get("noop_with_empty_axes") else list(range(rank))
    return sorted(axis % rank for axis in given)


def keeps_axes(node: Any) -> bool:
    """Whether reduced axes stay, with length 1."""
    return bool(node.attrs.get("keepdims", 1))


def operands(
    scope: Scope, op: str, source: Any, axes: list[int], keep: bool, like: str
) -> tuple[list[Any], dict[str, Any]]:
    """Inputs and attributes of a Reduce operator over `axes`, in the form of the model's opset."""
    attrs: dict[str, Any] = {"keepdims": int(keep)}
    if scope.opset >= (13 if op == "ReduceSum" else 18):
        return [source, scope.constant(np.array(axes, np.int64), f"{like}/axes")], attrs
    return [source], {"axes": axes, **attrs}


_SPREAD = ("Slice", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Identity")
"""Operators whose output has no other values than their input."""


def operand(node: Any, position: int) -> Any | None:
    """An input that may be left out."""
    given = len(node.inputs) > position and not node.inputs[position].is_empty()
    return node.inputs[position] if given else None


def with_factor(scope: Scope, node: Any) -> tuple[Any, float] | None:
    """The other operand of a Mul or Div with one scalar constant, and what that multiplies it by.

    The scalar of a Div must be the second operand, and not 0.
    """
    for place in (1, 0) if node.op == "Mul" else (1,):
        scalar, other = scope.scalar(node.inputs[place]), node.inputs[1 - place]
        if scalar is not None and not scope.is_constant(other):
            if node.op == "Mul":
                return other, scalar
            return (other, 1 / scalar) if scalar else None
    return None


def inputs_either_way(node: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Both orders of a binary node's inputs."""
    first, second = node.inputs
    return (first, second), (second, first)


def square_of(scope: Scope, tensor: Any) -> Any | None:
    """x, if `tensor` is x·x or x²."""
    node = scope.producer(tensor, "Pow", "Mul")
    if node is None:
        return None
    if node.op == "Mul":
        return node.inputs[0] if node.inputs[0] is node.inputs[1] else None
    return node.inputs[0] if scope.scalar(node.inputs[1]) == 2 else None


def is_filled_with(scope: Scope, tensor: Any, fill: float) -> bool:
    """Whether all elements are known to be `fill`, whatever their number."""
    while (node := scope.producer(tensor, *_SPREAD)) is not None:
        tensor = node.inputs[0]
    value = scope.value(tensor)
    if value is None:
        made = scope.producer(tensor, "ConstantOfShape")
        if made is None or "value" not in made.attrs:
            return made is not None and fill == 0  # its default
        value = made.attrs["value"].values
    return bool((value == fill).all())


def is_private(scope: Scope, inner: Sequence[Any], root: Any) -> bool:
    """Whether the nodes `inner` serve only each other and `root`, so that replacing `root` frees them."""
    group = {id(node) for node in (*inner, root)}
    return all(
        id(user) in group
        for node in inner
        for out in node.outputs
        for user in (*out.outputs, *([None] if scope.is_fixed(out) else []))
    )


def why_not_one_node(scope: Scope, source: Any, root: Any, inner: list[Any]) -> str | None:
    """Why `inner` and `root`, which makes the result, cannot be one node over `source`; None if they can."""
    if not scope.same_rank(source, root.outputs[0]):
        return "a constant adds an axis"
    if not is_private(scope, inner, root):
        return "an intermediate result is used elsewhere"
    return None
