"""The pattern that all normalisations share: x·1/√(v + ε), and the constants applied before and after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from trtopt.rewrite.affine import per_channel
from trtopt.rewrite.match import axes_of, inputs_either_way, keeps_axes, square_of
from trtopt.rewrite.scope import Array, Scope


@dataclass(frozen=True)
class Quotient:
    """`root` computes numerator/√(mean(square²) + epsilon), the mean over `axes`; `inner` lie between.

    `scale` is a constant that the numerator was multiplied with first, if any.
    """

    root: Any
    numerator: Any
    square: Any
    scale: Any | None
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


def _unscaled(scope: Scope, tensor: Any, square: Any) -> tuple[Any, Any | None, list[Any]]:
    """`tensor` taken apart into `square`, a constant and the Mul between, if that is what it is.

    Of two Casts of one tensor, of which exporters leave some, the second is as good as the first.
    """
    first, second = scope.producer(tensor, "Cast"), scope.producer(square, "Cast")
    if first is not None and second is not None and first.inputs[0] is second.inputs[0]:
        return (square if first.attrs["to"] == second.attrs["to"] else tensor), None, []
    node = scope.producer(tensor, "Mul")
    for other, constant in () if node is None else inputs_either_way(node):
        if other is square and scope.is_constant(constant):
            return square, constant, [node]
    return tensor, None, []


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
            top, scale, before = _unscaled(scope, numerator, squared)
            inner = [*under[1], plus, mean, mean.inputs[0].inputs[0], *before]
            return Quotient(node, top, squared, scale, axes, epsilon, inner)
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
    """The constants that a quotient over `source` is multiplied with and that are added, if any.

    `last` makes the result of it all, `inner` lie before it.
    """

    source: Any
    last: Any
    inner: list[Any]
    scale: Any | None
    shift: Any | None


def _with_constants(scope: Scope, start: Affine, ops: tuple[str, ...]) -> Affine:
    found = start
    for op in ops:
        user = scope.only_use(found.last.outputs[0], op)
        other = None if user is None else next(filter(scope.is_constant, user.inputs), None)
        if user is None or other is None or (op == "Mul" and found.scale is not None):
            continue
        inner = [*found.inner, found.last]
        scale, shift = (other, found.shift) if op == "Mul" else (found.scale, other)
        found = Affine(found.source, user, inner, scale, shift)
    return found


def affine_after(
    scope: Scope, node: Any, source: Any, scale: Any | None = None, ops: tuple[str, ...] = ("Mul", "Add")
) -> Affine:
    """Mul by a constant, but for a given `scale`, and Add of one that follow `node` and nothing else does."""
    return _with_constants(scope, Affine(source, node, [], scale, None), ops)


def affine_in_half(
    scope: Scope, found: Quotient, source: Any, ops: tuple[str, ...] = ("Mul", "Add")
) -> Affine | None:
    """The same where only the quotient is in FP32: FP16 or BF16 → Cast → quotient → Cast → Mul [→ Add].

    ONNX's operators with `stash_type` 1, the default, cast in the same two places.
    """
    first, back = scope.producer(source, "Cast"), scope.only_use(found.root.outputs[0], "Cast")
    if first is None or back is None or found.scale is not None:
        return None
    if first.attrs["to"] != onnx.TensorProto.FLOAT or back.attrs["to"] != scope.element(first.inputs[0]):
        return None
    affine = _with_constants(scope, Affine(first.inputs[0], back, [found.root], None, None), ops)
    return None if affine.scale is None else affine


def channelwise(scope: Scope, affine: Affine, source: Any) -> tuple[Array, Array] | None:
    """Scale and shift as one value a channel (axis 1) of `source`; None if there is no such form."""
    if source.shape is None or len(source.shape) < 3 or not isinstance(source.shape[1], int):
        return None
    given = (
        np.full(1, fill) if constant is None else scope.value(constant)
        for constant, fill in ((affine.scale, 1.0), (affine.shift, 0.0))
    )
    scale, shift = (per_channel(value, source.shape[1], len(source.shape)) for value in given)
    return None if scale is None or shift is None else (scale, shift)


def channelwise_inputs(scope: Scope, affine: Affine, source: Any, like: str) -> list[Any]:
    """The inputs of a normalisation of `source` per channel, where `channelwise` finds its constants."""
    constants, dtype = channelwise(scope, affine, source), scope.dtype(source)
    assert constants is not None
    scale, shift = (np.ascontiguousarray(item, dtype) for item in constants)
    return [source, scope.constant(scale, f"{like}/scale"), scope.constant(shift, f"{like}/bias")]


def spreads(scope: Scope, constant: Any | None, shape: tuple[int, ...]) -> bool:
    """Whether a constant, if there is one, spreads over the last axes alone, which have `shape`."""
    if constant is None or tuple(constant.shape) == shape:
        return True
    own, extra = tuple(constant.shape), max(0, len(constant.shape) - len(shape))
    fits = own[extra:] == shape[max(0, len(shape) - len(own)) :] and all(axis == 1 for axis in own[:extra])
    return scope.value(constant) is not None and (fits or int(np.prod(own)) == 1)


def spread(scope: Scope, constant: Any | None, shape: tuple[int, ...], source: Any, like: str) -> Any:
    """The constant over the last axes, which have `shape`; ones of the type of `source` if there is none."""
    if constant is not None and tuple(constant.shape) == shape:
        return constant
    value = None if constant is None else scope.value(constant)
    if value is None:
        return scope.constant(np.ones(shape, scope.dtype(source)), like)
    flat = value.reshape(value.shape[max(0, value.ndim - len(shape)) :])
    return scope.constant(np.broadcast_to(flat, shape), like)
