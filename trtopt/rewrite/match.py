"""Pieces of patterns that several rules look for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from trtopt.rewrite.scope import Scope


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


_SPREAD = ("Slice", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Identity")
"""Operators whose output has no other values than their input."""


def operand(node: Any, position: int) -> Any | None:
    """An input that may be left out."""
    given = len(node.inputs) > position and not node.inputs[position].is_empty()
    return node.inputs[position] if given else None


def with_constants(scope: Scope, node: Any) -> Iterator[tuple[Any, Any]]:
    """The operands of a binary node, the second a constant; in either order where none matters."""
    for place in (1, 0) if node.op in ("Add", "Mul") else (1,):
        if scope.is_constant(node.inputs[place]):
            yield node.inputs[1 - place], node.inputs[place]


def with_factor(scope: Scope, node: Any) -> tuple[Any, float] | None:
    """The other operand of a Mul or Div with one scalar constant, and what that multiplies it by.

    The scalar of a Div must be the second operand, and not 0.
    """
    for other, constant in with_constants(scope, node):
        scalar = scope.scalar(constant)
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


# ── lengths of axes that are computed of shapes ────────────────────────────────────────────────────────────


FAR = 2**31 - 1
"""An end from here on is the other end of the axis to ONNX Runtime, also for a negative step; not to ONNX."""


def length(tensor: Any, place: int) -> Any:
    """The number or the name of an axis, or the axis itself: of two that are equal the lengths are."""
    known = tensor.shape[place]
    return known if known or isinstance(known, int) else (id(tensor), place)


def lengths_requested(scope: Scope, tensor: Any) -> list[Any] | None:
    """The lengths that `tensor` holds, in order; None if it is no Shape's, nor picked out of one.

    Gather and Slice pick; Unsqueeze, Squeeze and Reshape leave the order.
    """
    ways = ("Shape", "Gather", "Slice", "Unsqueeze", "Squeeze", "Reshape")
    node = scope.producer(tensor, *ways)
    while node is not None and node.op in ways[3:]:
        node = scope.producer(node.inputs[0], *ways)
    picked = None if node is None else pick_axes(scope, node)
    return None if picked is None else [length(picked[0], place) for place in np.ravel(picked[1])]


def pick_axes(scope: Scope, node: Any) -> tuple[Any, np.ndarray[Any, Any]] | None:
    """The tensor whose lengths a Shape, or a Gather or Slice of one, reads, and which axes, in its order."""
    shape = node if node.op == "Shape" else scope.producer(node.inputs[0], "Shape")
    if shape is None or scope.rank(shape.inputs[0]) is None:
        return None
    source = shape.inputs[0]
    axes = np.arange(len(source.shape))[shape.attrs.get("start", 0) : shape.attrs.get("end", None)]
    places = _pick(scope, node, len(axes))
    return None if places is None else (source, axes[places])


def _pick(scope: Scope, node: Any, count: int) -> np.ndarray[Any, Any] | None:
    """Which of `count` elements a Shape, Gather or Slice node returns; None if unknown."""
    places = np.arange(count)
    if node.op == "Shape":
        return places
    if node.op == "Gather":
        index = scope.value(node.inputs[1])
        fits = index is not None and bool(np.all((index >= -count) & (index < count)))
        return places[index.astype(np.int64)] if fits and index is not None else None
    start, end, axis, step = (_single(scope, node, position) for position in (1, 2, 3, 4))
    computed = any(_is_computed(scope, node, position) for position in (3, 4))
    if start is None or end is None or computed or axis not in (0, -1, None) or step == 0:
        return None
    if (step or 1) < 0 and end >= FAR:
        return None
    return places[start : min(end, count) if end >= 0 else end : step]


def _is_computed(scope: Scope, node: Any, position: int) -> bool:
    given = node.inputs[position : position + 1]
    return any(not tensor.is_empty() and scope.value(tensor) is None for tensor in given)


def _single(scope: Scope, node: Any, position: int) -> int | None:
    value = scope.integers(node, ("", "starts", "ends", "axes", "steps")[position], position)
    return value[0] if value and len(value) == 1 else None
