"""Where the length of an axis comes from: which tensors share it, though no number is known.

Shape inference gives up names wherever a shape is computed. Following one axis backwards through operators
that keep it finds the tensor that it was taken from; two axes with one origin have one length.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from trtopt.rewrite.scope import STANDARD, Scope

_KEEP_ALL = frozenset((
    "Relu", "LeakyRelu", "Elu", "Erf", "Gelu", "Tanh", "Sigmoid", "HardSigmoid", "HardSwish", "Softplus",
    "Clip", "Sqrt", "Exp", "Log", "Neg", "Abs", "Not", "Reciprocal", "Cast", "Identity", "Dropout", "Softmax",
    "LogSoftmax",
    "LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization",
    "BatchNormalization", "QuantizeLinear", "DequantizeLinear",
))  # fmt: skip
_BROADCAST = frozenset(
    ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "And", "Or", "Where", "Equal", "Greater", "Less")
)
_KEEP_BATCH = frozenset(
    ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
)

FAR = 2**31 - 1
"""An end from here on is the other end of the axis to ONNX Runtime, also for a negative step; not to ONNX."""

Origin = tuple[Any, int]
"""A tensor and the place of an axis in it."""


class Axes:
    """The origins of the axes of a scope's tensors; `learn` wants nodes in order."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._known: dict[tuple[int, int], Origin] = {}
        self._named: dict[str, Origin] = {}
        for tensor in scope.graph.inputs:
            for place, axis in enumerate(tensor.shape or ()):
                if isinstance(axis, str) and axis:
                    self._known[id(tensor), place] = self._named.setdefault(axis, (tensor, place))

    def of(self, tensor: Any, place: int) -> Origin:
        """Where the length of that axis comes from; from the tensor itself if nothing is known."""
        return self._known.get((id(tensor), place), (tensor, place))

    def same(self, first: Origin, second: Origin) -> bool:
        """Whether two origins are one."""
        return first[0] is second[0] and first[1] == second[1]

    def learn(self, node: Any) -> None:
        """Note the origins of the axes that `node` hands on."""
        out = node.outputs[0] if node.outputs else None
        shape = [] if out is None or out.shape is None else list(out.shape)
        for place, axis in enumerate(shape):
            origin = self._named.get(axis) if isinstance(axis, str) else None
            origin = origin or self._through(node, place, len(shape))
            if origin is not None:
                self._known[id(out), place] = origin

    def _through(self, node: Any, place: int, rank: int) -> Origin | None:
        source = node.inputs[0] if node.inputs else None
        if node.domain not in STANDARD or source is None or self._scope.rank(source) is None:
            return None
        if node.op in _KEEP_ALL or (node.op in _KEEP_BATCH and place == 0):
            return self.of(source, place)
        if node.op in _BROADCAST:
            return self._aligned(node.inputs, place - rank)
        if node.op == "Transpose":
            return self.of(source, node.attrs["perm"][place]) if "perm" in node.attrs else None
        if node.op == "MatMul":
            return self._product(node, place, rank)
        if node.op == "Gather":
            return self._gathered(node, place)
        if node.op == "Reshape":
            shape = self._scope.value(node.inputs[1])
            copied = shape is not None and shape[place] == 0 and not node.attrs.get("allowzero")
            return self.of(source, place) if copied else None
        return None

    def _aligned(self, operands: Iterable[Any], place: int) -> Origin | None:
        """The one origin of all operands' axes at `place`, counted from the back; those of length 1 yield."""
        found: list[Origin] = []
        for operand in operands:
            if operand.shape is None:
                return None
            if len(operand.shape) >= -place and operand.shape[place] != 1:
                found.append(self.of(operand, len(operand.shape) + place))
        return found[0] if found and all(self.same(found[0], other) for other in found) else None

    def _product(self, node: Any, place: int, rank: int) -> Origin | None:
        left, right = node.inputs
        if self._scope.rank(right) is None or len(left.shape) < 2 or len(right.shape) < 2:
            return None
        if place == rank - 1:
            return self.of(right, len(right.shape) - 1)
        if place == rank - 2:
            return self.of(left, len(left.shape) - 2)
        return self._aligned(node.inputs, place - rank)

    def _gathered(self, node: Any, place: int) -> Origin | None:
        data, indices = node.inputs
        if self._scope.rank(indices) is None:
            return None
        axis = node.attrs.get("axis", 0) % len(data.shape)
        width = len(indices.shape)
        if place < axis:
            return self.of(data, place)
        return self.of(indices, place - axis) if place < axis + width else self.of(data, place - width + 1)


def lengths_requested(scope: Scope, tensor: Any) -> list[Origin] | None:
    """The axes whose lengths `tensor` holds, in order; None if that is no Shape's, nor picked out of one.

    Gather and Slice pick; Unsqueeze, Squeeze and Reshape leave the order.
    """
    ways = ("Shape", "Gather", "Slice", "Unsqueeze", "Squeeze", "Reshape")
    node = scope.producer(tensor, *ways)
    while node is not None and node.op in ways[3:]:
        node = scope.producer(node.inputs[0], *ways)
    picked = None if node is None else picked_axes(scope, node)
    return None if picked is None else [(picked[0], int(place)) for place in np.ravel(picked[1])]


def picked_axes(scope: Scope, node: Any) -> tuple[Any, np.ndarray[Any, Any]] | None:
    """The tensor whose lengths a Shape, or a Gather or Slice of one, reads, and which axes, in its order."""
    shape = node if node.op == "Shape" else scope.producer(node.inputs[0], "Shape")
    if shape is None or scope.rank(shape.inputs[0]) is None:
        return None
    source = shape.inputs[0]
    axes = np.arange(len(source.shape))[shape.attrs.get("start", 0) : shape.attrs.get("end", None)]
    places = _picked(scope, node, len(axes))
    return None if places is None else (source, axes[places])


def _picked(scope: Scope, node: Any, count: int) -> np.ndarray[Any, Any] | None:
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
