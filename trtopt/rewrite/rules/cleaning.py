"""Operators in their plain form, and what does nothing is taken out."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from trtopt.rewrite.match import is_filled_with, operand, with_constants
from trtopt.rewrite.rule import (
    AUDIT_RTX,
    BUILT_HERE,
    DOCUMENTED,
    OPERATORS,
    PARSER_8_6,
    Verdict,
    at,
    builds,
    layers,
    quantizes,
    rule,
)
from trtopt.rewrite.scope import Scope


@rule(
    "CastLike(x, y) → Cast(x, type of y), where that type is known",
    "B",
    "constants that fold",
    evidence=(builds("builds only with it, no importer for CastLike"),),
)
@at("CastLike")
def cast_like(scope: Scope, node: Any) -> Verdict:
    """PyTorch's newer exporter writes it behind most constants. As a Cast it folds with them.

    TensorRT's parser takes CastLike too, but as one more layer.
    """
    source, like = node.inputs
    dtype = scope.dtype(like)
    if dtype is None:
        return "the type to cast to is unknown"
    return lambda: scope.replace(node, "Cast", [source], {"to": onnx.helper.np_dtype_to_tensor_dtype(dtype)})


# ── inline-if ──────────────────────────────────────────────────────────────────────────────────────────────


@rule(
    "If whose condition is a constant → the nodes of the branch that is taken",
    "B",
    "fusion across the border of a conditional",
    evidence=(layers("does it itself"), quantizes("nodes in branches of an If")),
)
@at("If")
def inline_if(scope: Scope, node: Any) -> Verdict | None:
    """Exporters leave such Ifs where they test a rank or a flag that is fixed.

    TensorRT runs an If as a conditional with borders that nothing fuses across, and wants both branches to
    have one shape. Names made in the branch stay: no other graph of a prepared model has them.
    """
    condition = scope.value(node.inputs[0])
    if condition is None or condition.size != 1:
        return None
    return partial(_inline, scope, node, node.attrs["then_branch" if condition.any() else "else_branch"])


def _inline(scope: Scope, node: Any, branch: Any) -> None:
    results = {id(tensor) for tensor in branch.outputs}
    for tensor in [tensor for inner in branch.nodes for tensor in inner.outputs]:
        if id(tensor) in results:
            tensor.name = scope.context.fresh(tensor.name)  # it would still be taken for a subgraph's output
    scope.adopt(branch, node)
    outputs = list(node.outputs)
    node.outputs.clear()
    for own, result in zip(outputs, branch.outputs, strict=True):
        scope.insert(node, "Identity", [result], [own])
    scope.kill(node)


# ── what does nothing ──────────────────────────────────────────────────────────────────────────────────────


@rule(
    "Operators that return their input unchanged (y = x) are removed",
    "B",
    "constant weights and bias; no copies between kernels",
    evidence=(
        layers("one layer less, two between a convolution and its activation"),
        quantizes("batch norms behind copies are folded"),
    ),
)
@at("Identity", "Dropout", "Cast")
def erase_identity(scope: Scope, node: Any) -> Verdict | None:
    """Identity(x), Dropout(x) outside training, Cast(x) to the type that x has.

    An Identity over an initializer, which exporters write where several layers share weights, gives way to
    the initializer itself: TensorRT takes weights and bias of a convolution only from constants, and runs
    such leftovers as kernels of their own.
    """
    source = node.inputs[0]
    if node.op == "Cast":
        known = scope.dtype(source)
        if known is None or onnx.helper.np_dtype_to_tensor_dtype(known) != node.attrs["to"]:
            return None
    if node.op == "Dropout":
        if len(node.outputs) > 1 and (node.outputs[1].outputs or scope.is_fixed(node.outputs[1])):
            return "its mask is used"
        old, trains = scope.opset < 7 and not node.attrs.get("is_test", 0), operand(node, 2)
        if old or (trains is not None and scope.scalar(trains) != 0):
            return "it may be in training mode"
    return scope.why_not_bypass(node, source) or (lambda: scope.bypass(node, source))


@rule(
    "Shape(x, start, end) → Slice(Shape(x), start, end), whose attributes TensorRT 8.6's parser ignores",
    "B",
    "the right sizes on 8.6",
    evidence=(builds("its parser reads neither start nor end: wrong sizes", source=PARSER_8_6),),
)
@at("Shape")
def plain_shape(scope: Scope, node: Any) -> Verdict | None:
    """For TensorRT 8.6 alone: its parser passes over the two attributes that opset 15 gave the operator.

    It takes the whole shape, so that what follows has other sizes or does not import. PyTorch's exporter
    writes them.
    """
    if not node.attrs.get("start", 0) and "end" not in node.attrs:
        return None
    if scope.target.shape_ends:
        return f"TensorRT {scope.target.name} reads the attributes"

    def apply() -> None:
        whole = scope.compute(node, "Shape", [node.inputs[0]], node.outputs[0])
        ends = {"start": node.attrs.get("start", 0), "end": node.attrs.get("end", np.iinfo(np.int64).max)}
        slices = [
            scope.constant(np.array([end], np.int64), f"{node.name}/{name}") for name, end in ends.items()
        ]
        scope.replace(node, "Slice", [whole, *slices])

    return apply


@rule(
    "Nodes whose outputs are unused are dropped, and then those that only they needed. Cleaning only", "B", ""
)
@at()
def drop_dead(scope: Scope, node: Any) -> Verdict | None:
    """What is left over of an export."""
    if any(out.outputs or scope.is_fixed(out) for out in node.outputs):
        return None
    return lambda: scope.kill(node)


_OPTIONAL = {"MaxPool": 1, "Dropout": 1, "LayerNormalization": 1}


@rule(
    "Unused optional outputs are dropped: MaxPool's indices, Dropout's mask",
    "B",
    "operators in the form that the parser takes",
    evidence=(
        builds("builds only with it, refuses MaxPool with two outputs"),
        builds("refuses MaxPool with two outputs", BUILT_HERE, AUDIT_RTX),
        builds("documented: MaxPool's indices are not supported", DOCUMENTED, OPERATORS),
    ),
)
@at(*_OPTIONAL)
def drop_unused(scope: Scope, node: Any) -> Verdict | None:
    """TensorRT's parser has no second output for most of these. Only trailing outputs can go."""

    def is_unused() -> bool:
        last = node.outputs[-1]
        return len(node.outputs) > _OPTIONAL[node.op] and not last.outputs and not scope.is_fixed(last)

    def apply() -> None:
        while is_unused():
            del node.outputs[-1]

    return apply if is_unused() else None


_MOST_ELEMENTS = 1 << 16  # a bias is read to see whether it is zero, a table of weights is not
_NEUTRAL = {"Mul": 1.0, "Div": 1.0, "Pow": 1.0, "Add": 0.0, "Sub": 0.0}


@rule(
    "x·1, x/1, x+0, x−0, x¹ → x, where the constant neither widens the shape nor changes the type",
    "B",
    "Scale erasure",
    evidence=(
        layers("no layer for the constant; behind a convolution it does it itself"),
        quantizes("nothing float between a convolution and the next layer"),
    ),
)
@at(*_NEUTRAL)
def erase_arithmetic(scope: Scope, node: Any) -> Verdict | None:
    """A scalar constant, or one of no more axes than x with every axis 1, cannot widen x.

    (x + 0 turns −0 into +0: equal, and equal in every consumer but 1/x.)
    """
    pairs = (pair for pair in with_constants(scope, node) if _is_neutral(scope, node.op, pair[1]))
    source, constant = next(pairs, (None, None))
    if source is None or constant is None:
        return None
    rank = scope.rank(source)
    if len(constant.shape) and (rank is None or len(constant.shape) > rank):
        return "the constant may widen the shape"
    for axis, own in zip(reversed(constant.shape), reversed(source.shape or []), strict=False):
        if axis not in (1, own):
            return "the constant may widen the shape"
    return scope.why_not_bypass(node, source) or (lambda: scope.bypass(node, source))


def _is_neutral(scope: Scope, op: str, constant: Any) -> bool:
    value = scope.value(constant) if np.prod(constant.shape) <= _MOST_ELEMENTS else None
    return value is not None and bool(value.size and (value == _NEUTRAL[op]).all())


_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}


@rule(
    "LSTM, GRU or RNN whose initial state is zeros → the same without it: ONNX starts at zero by default",
    "B",
    "no shape layers",
    evidence=(layers("does it itself"),),
)
@at(*_STATES)
def zero_state(scope: Scope, node: Any) -> Verdict | None:
    """Exporters compute zeros as long as the batch, out of its Shape. What computed them dies with them."""
    given = [place for place in _STATES[node.op] if place < len(node.inputs)]
    zeros = [place for place in given if is_filled_with(scope, node.inputs[place], 0)]

    def apply() -> None:
        for place in zeros:
            scope.set_input(node, place, gs.Variable.empty())
        while node.inputs[-1].is_empty():
            node.inputs.pop()

    return apply if zeros else None
