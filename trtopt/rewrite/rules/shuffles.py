"""Data that is moved, and what is there twice: transposes, reshapes, equal nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np

from trtopt.onnxio.graph_walk import DRAWN
from trtopt.rewrite.match import length, lengths_requested
from trtopt.rewrite.rule import Match, Verdict, at, layers, rule
from trtopt.rewrite.scope import STANDARD, Scope

# ── plain-reshape ──────────────────────────────────────────────────────────────────────────────────────────


@rule(
    "Reshape(x, computed shape) → Reshape(x, constant), where every axis of the result is known in advance",
    "B",
    "no shape layers",
    evidence=(layers("does it itself"),),
)
def plain_reshape(scope: Scope) -> Iterator[Match]:
    """In a Reshape's constant, 0 copies the axis of x at the same place and −1 is what is left over.

    So an axis that is a number, one that has the length of x's axis there, and one more of any kind can be
    written down. What is left over is a number too if all that x has beyond the copied axes is. The Shape,
    Gather, Slice and Concat nodes that computed the shape then die: no shape layers, and TensorRT sees which
    axes stay as they are.
    """
    for node in scope.nodes("Reshape"):
        if not scope.is_constant(node.inputs[1]):
            parts = _parts(scope, node)
            if parts is not None and scope.rank(node.inputs[0]) is not None:
                shape = [_axis(node, *part) for part in enumerate(parts)]
                shape = _without_minus_one(shape, node.inputs[0].shape)
                if shape.count(-1) > 1:
                    reason = "more than one axis of the result is neither a number nor copied in place"
                    yield Match(node, reason)
                elif node.attrs.get("allowzero") and 0 in parts:
                    yield Match(node, "allowzero is set, and an axis may be empty")
                else:
                    yield Match(node, partial(_fix_shape, scope, node, shape))


def _fix_shape(scope: Scope, node: Any, shape: list[int]) -> None:
    scope.set_input(node, 1, scope.constant(np.array(shape, np.int64), f"{node.name}/shape"))
    node.attrs.pop("allowzero", None)
    if node.outputs[0].shape is None:
        node.outputs[0].shape = [axis if axis > 0 else None for axis in shape]


def _parts(scope: Scope, node: Any) -> list[Any] | None:
    """The lengths that the shape is made of, None if unknown; None if not even their number is clear."""
    declared = node.outputs[0].shape
    maker = scope.producer(node.inputs[1], "Concat")
    parts: list[Any] = []
    for tensor in maker.inputs if maker is not None else [node.inputs[1]]:
        value, requested = scope.value(tensor), lengths_requested(scope, tensor)
        if value is not None:
            parts += [int(axis) for axis in value.reshape(-1)]
        elif requested is not None:
            parts += requested
        elif tuple(tensor.shape or ()) == (1,):
            parts.append(None)
        else:
            return None if maker is not None or declared is None else [None] * len(declared)
    return parts if declared is None or len(declared) == len(parts) else None


def _axis(node: Any, place: int, part: Any) -> int:
    """An axis as a Reshape's constant has it."""
    before, after = node.inputs[0], node.outputs[0]
    found = [part, *([length(after, place) or -1] if after.shape else [])]  # 0 would copy an axis
    number = next((one for one in found if isinstance(one, int)), None)
    if number is not None:
        return number
    return 0 if place < len(before.shape) and length(before, place) in found else -1


def _without_minus_one(shape: list[int], before: list[Any]) -> list[int]:
    """The shape with its -1 replaced by a number, where that is known."""
    copied = [place for place, axis in enumerate(shape) if axis == 0]
    left = [axis for place, axis in enumerate(before) if place not in copied]
    if shape.count(-1) != 1 or not all(isinstance(axis, int) for axis in left):
        return shape
    rest = prod(left) // prod(axis for axis in shape if axis > 0) or -1  # 0 would copy an axis
    return [rest if axis == -1 else axis for axis in shape]


# ── reshape-chain ──────────────────────────────────────────────────────────────────────────────────────────

_OPS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose")


@rule(
    "Reshape(Reshape(x, s), t) → Reshape(x, t); also Squeeze, Unsqueeze, Flatten and some Transposes",
    "B",
    "Shuffle+Shuffle",
    evidence=(layers("no NoOp where both copy an axis; else it does it itself"),),
)
@at(*_OPS)
def reshape_chain(scope: Scope, node: Any) -> Verdict | None:
    """A chain of these keeps the order of the elements, so only the last shape matters.

    A Transpose keeps it if it moves no axis but those of length 1. Zeros of a shape mean "as in the input",
    which changes meaning when the input changes: they stay where the first of the two copies that axis as
    well, are resolved, or the chain stays. A chain that ends in something else than a Reshape becomes one if
    at most one axis of its result is open.
    """
    first = scope.producer(node.inputs[0], *_OPS)
    if first is None or {node.op, first.op} == {"Transpose"}:
        return None
    if not (_keeps_order(scope, node) and _keeps_order(scope, first)):
        return None
    source, final, shape = first.inputs[0], _final(scope, node, first), _constant(scope, node)
    if node.attrs.get("allowzero") and (shape is None or 0 in shape):
        return "allowzero is set, and an axis may be empty"
    if final is not None:
        return lambda: scope.replace(
            node, "Reshape", [source, scope.constant(np.array(final, np.int64), f"{node.name}/shape")]
        )
    if _computed_without_zeros(scope, node):
        return lambda: scope.set_input(node, 0, source)
    return "the final shape keeps more than one open axis, or copies one from its input"


def _keeps_order(scope: Scope, node: Any) -> bool:
    """Whether the elements stay in order: of Transposes, if axes longer than 1 do."""
    if node.op != "Transpose":
        return True
    shape, order = node.inputs[0].shape, node.attrs.get("perm")
    if shape is None or order is None:
        return False
    moved = [place for place in order if shape[place] != 1]
    return moved == sorted(moved)


def _from_shape(scope: Scope, tensor: Any) -> list[int] | None:
    axes = (
        [axis if isinstance(axis, int) else -1 for axis in tensor.shape] if tensor.shape is not None else None
    )
    return None if axes is None or axes.count(-1) > 1 or 0 in axes else axes


def _final(scope: Scope, node: Any, first: Any) -> list[int] | None:
    """The result's shape as a Reshape of what `first` reads has it; None if it cannot be written so."""
    if node.op != "Reshape":
        return _from_shape(scope, node.outputs[0])
    axes = _constant(scope, node)
    if axes is None or 0 not in axes:
        return axes
    before = [] if first.attrs.get("allowzero") else _constant(scope, first) or []
    kept = [axis or _copied(before, place) for place, axis in enumerate(axes)]
    return kept if kept.count(-1) <= 1 else _from_shape(scope, node.outputs[0])


def _copied(before: list[int], place: int) -> int:
    """The axis that a second Reshape copies, in the words of the first: -1 if those do not have it."""
    return before[place] if place < len(before) and before[place] >= 0 else -1


def _constant(scope: Scope, node: Any) -> list[int] | None:
    shape = scope.value(node.inputs[1]) if node.op == "Reshape" else None
    return None if shape is None else [int(axis) for axis in shape]


def _computed_without_zeros(scope: Scope, node: Any) -> bool:
    """Whether a computed shape operand is a Concat of parts none of which is the constant 0."""
    if node.op != "Reshape" or node.attrs.get("allowzero"):
        return False
    maker = scope.producer(node.inputs[1], "Concat")
    parts = [] if maker is None else [scope.value(part) for part in maker.inputs]
    return maker is not None and all(part is None or (part != 0).all() for part in parts)


# ── share-equal ────────────────────────────────────────────────────────────────────────────────────────────

_NEVER = {*DRAWN, "Dropout", "DequantizeLinear", "QuantizeLinear"}


def _content(scope: Scope, tensor: Any) -> Any:
    """What identifies a constant; its own identity if its values cannot be read or are a large weight."""
    value = scope.value(tensor) if scope.is_small(tensor) else None
    if value is None:
        return id(tensor)
    return (value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).digest())


def _signature(node: Any) -> Any:
    plain = (int, float, str, list, tuple)
    foreign = node.domain not in STANDARD  # who knows what it does
    if foreign or node.op in _NEVER or not all(isinstance(item, plain) for item in node.attrs.values()):
        return None
    attrs = tuple(sorted((key, repr(item)) for key, item in node.attrs.items()))
    return (node.op, attrs, tuple("" if item.is_empty() else id(item) for item in node.inputs))


@rule("Equal initializers are merged, and so are identical nodes with identical inputs", "B", "")
def share_equal(scope: Scope) -> Iterator[Match]:
    """Two nodes are the same if operator, attributes and inputs are, and nothing in them is random.

    Nor must they have state or a subgraph. Initializers are compared by type, shape and bytes. Cleaning only:
    TensorRT merges most itself.
    """
    constants: dict[Any, Any] = {}
    seen: dict[Any, Any] = {}
    for node in scope.nodes():
        for tensor in list(node.inputs):
            if scope.is_small(tensor) and scope.is_read_only_here(tensor):
                first = constants.setdefault(_content(scope, tensor), tensor)
                if first is not tensor and tensor.outputs and not scope.is_fixed(tensor):
                    yield Match(node, partial(scope.rewire, tensor, first))
        signature = _signature(node)
        first = node if signature is None else seen.setdefault(signature, node)
        same = [out.is_empty() for out in first.outputs] == [out.is_empty() for out in node.outputs]
        if first is not node and same:
            is_fixed = any(scope.is_fixed(out) for out in node.outputs)
            reason = "both results are outputs of the graph, or one is"
            yield Match(node, reason if is_fixed else partial(_share, scope, node, first))


def _share(scope: Scope, node: Any, twin: Any) -> None:
    for own, same in zip(list(node.outputs), twin.outputs, strict=True):
        scope.rewire(own, same)
    scope.kill(node)
