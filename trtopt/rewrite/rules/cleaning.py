"""Operators in their plain form, and what does nothing is taken out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from trtopt.rewrite.evidence import (
    AUDIT_RTX,
    BUILT_HERE,
    DOCUMENTED,
    MAXPOOL,
    PARSER_8_6,
    builds,
    layers,
    quantises,
)
from trtopt.rewrite.match import is_filled_with
from trtopt.rewrite.rule import Match, Rule, always
from trtopt.rewrite.scope import Scope

# ── cast-like ──────────────────────────────────────────────────────────────────────────────────────────────


def _find_cast_like(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("CastLike"):
        yield Match(node)


def _check_cast_like(scope: Scope, match: Match) -> str | None:
    return "the type to cast to is unknown" if scope.dtype(match.node.inputs[1]) is None else None


def _apply_cast_like(scope: Scope, match: Match) -> None:
    node = match.node
    code = onnx.helper.np_dtype_to_tensor_dtype(scope.dtype(node.inputs[1]))
    scope.replace(node, "Cast", [node.inputs[0]], {"to": code})


CAST_LIKE = Rule(
    "cast-like",
    "CastLike(x, y) → Cast(x, type of y), where that type is known",
    "B",
    "constants that fold",
    _find_cast_like,
    _check_cast_like,
    _apply_cast_like,
    evidence=(builds("builds only with it, no importer for CastLike"),),
)
"""PyTorch's newer exporter writes it behind most constants. As a Cast it folds with them; TensorRT's parser
takes CastLike too, but as one more layer."""


# ── inline-if ──────────────────────────────────────────────────────────────────────────────────────────────


def _find_inline_if(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("If"):
        condition = scope.value(node.inputs[0])
        if condition is not None and condition.size == 1:
            taken = "then_branch" if condition.reshape(-1)[0] else "else_branch"
            yield Match(node, {"branch": node.attrs[taken]})


def _names_around(scope: Scope, node: Any, branch: Any) -> dict[str, set[int]]:
    """Which tensors each name stands for once the branch has moved; graphs inside nodes see its names too."""
    found: dict[str, set[int]] = {}
    inside = (*branch.subgraphs(recursive=True), *(
        graph for other in scope.graph.nodes if other is not node for graph in other.subgraphs(recursive=True)
    ))  # fmt: skip
    for graph in (scope.graph, *inside):
        used = [tensor for other in graph.nodes for tensor in (*other.inputs, *other.outputs)]
        for tensor in (*graph.inputs, *graph.outputs, *used):
            found.setdefault(tensor.name, set()).add(id(tensor))
    return found


def _apply_inline_if(scope: Scope, match: Match) -> None:
    node, branch = match.node, match.parts["branch"]
    around = _names_around(scope, node, branch)
    made = {id(tensor): tensor for inner in branch.nodes for tensor in inner.outputs if not tensor.is_empty()}
    read = [tensor for inner in branch.nodes for tensor in inner.inputs]
    constants = {id(tensor): tensor for tensor in (*read, *branch.outputs) if scope.is_constant(tensor)}
    results = {id(tensor) for tensor in branch.outputs}
    for key, tensor in {**made, **constants}.items():
        clashes = around.get(tensor.name, set()) - {key}
        if clashes or key in results & made.keys():  # it would still be taken for a subgraph's output
            tensor.name = scope.context.fresh(tensor.name)
    scope.adopt(branch, node)
    outputs = list(node.outputs)
    node.outputs.clear()
    for own, result in zip(outputs, branch.outputs, strict=True):
        scope.insert(node, "Identity", [result], [own])
    scope.kill(node)


INLINE_IF = Rule(
    "inline-if",
    "If whose condition is a constant → the nodes of the branch that is taken",
    "B",
    "fusion across the border of a conditional",
    _find_inline_if,
    always,
    _apply_inline_if,
    evidence=(layers("does it itself"), quantises("nodes in branches of an If")),
)
"""Exporters leave such Ifs where they test a rank or a flag that is fixed. TensorRT runs an If as a
conditional with borders that nothing fuses across, and wants both branches to have one shape. Names made
in the branch stay, unless the graph around it or one inside its nodes has them too."""


# ── erase-identity ─────────────────────────────────────────────────────────────────────────────────────────


def _find_erase_identity(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Identity", "Dropout", "Cast"):
        source = node.inputs[0]
        if node.op == "Cast":
            known = scope.dtype(source)
            if known is None or onnx.helper.np_dtype_to_tensor_dtype(known) != node.attrs["to"]:
                continue
        yield Match(node)


def _check_erase_identity(scope: Scope, match: Match) -> str | None:
    node = match.node
    if node.op == "Dropout":
        if len(node.outputs) > 1 and (node.outputs[1].outputs or scope.is_fixed(node.outputs[1])):
            return "its mask is used"
        given = len(node.inputs) > 2 and not node.inputs[2].is_empty()
        old = scope.opset < 7 and not node.attrs.get("is_test", 0)
        if old or (given and scope.scalar(node.inputs[2]) != 0):
            return "it may be in training mode"
    return scope.why_not_bypass(node, node.inputs[0])


def _apply_erase_identity(scope: Scope, match: Match) -> None:
    scope.bypass(match.node, match.node.inputs[0])


ERASE_IDENTITY = Rule(
    "erase-identity",
    "Operators that return their input unchanged (y = x) are removed",
    "B",
    "constant weights and bias; no copies between kernels",
    _find_erase_identity,
    _check_erase_identity,
    _apply_erase_identity,
    evidence=(
        layers("one layer less, two between a convolution and its activation"),
        quantises("batch norms behind copies are folded"),
    ),
)
"""Identity(x), Dropout(x) outside training, Cast(x) to the type that x has. An Identity over an initializer,
which exporters write where several layers share weights, gives way to the initializer itself: TensorRT
takes weights and bias of a convolution only from constants, and runs such leftovers as kernels of their
own."""


# ── plain-shape ────────────────────────────────────────────────────────────────────────────────────────────


def _find_plain_shape(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Shape"):
        if node.attrs.get("start", 0) or "end" in node.attrs:
            yield Match(node)


def _check_plain_shape(scope: Scope, match: Match) -> str | None:
    if scope.target.shape_ends:
        return f"TensorRT {scope.target.name} reads the attributes"
    return None


def _apply_plain_shape(scope: Scope, match: Match) -> None:
    node = match.node
    whole = scope.compute(node, "Shape", [node.inputs[0]], node.outputs[0])
    ends = [node.attrs.get("start", 0), node.attrs.get("end", np.iinfo(np.int64).max)]
    slices = [
        scope.constant(np.array([end], np.int64), f"{node.name}/{name}")
        for end, name in zip(ends, ("start", "end"), strict=True)
    ]
    scope.replace(node, "Slice", [whole, *slices])


PLAIN_SHAPE = Rule(
    "plain-shape",
    "Shape(x, start, end) → Slice(Shape(x), start, end), whose attributes TensorRT 8.6's parser ignores",
    "B",
    "the right sizes on 8.6",
    _find_plain_shape,
    _check_plain_shape,
    _apply_plain_shape,
    evidence=(builds("its parser reads neither start nor end: wrong sizes", source=PARSER_8_6),),
)
"""For TensorRT 8.6 alone: its parser passes over the two attributes that opset 15 gave the operator and takes
the whole shape, so that what follows has other sizes or does not import. PyTorch's exporter writes them."""


# ── drop-dead ──────────────────────────────────────────────────────────────────────────────────────────────


def _find_drop_dead(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes():
        if not any(out.outputs or scope.is_fixed(out) for out in node.outputs):
            yield Match(node)


def _apply_drop_dead(scope: Scope, match: Match) -> None:
    scope.kill(match.node)


DROP_DEAD = Rule(
    "drop-dead",
    "Nodes whose outputs are unused are dropped, and then those that only they needed. Cleaning only",
    "B",
    "",
    _find_drop_dead,
    always,
    _apply_drop_dead,
)


# ── drop-unused ────────────────────────────────────────────────────────────────────────────────────────────

_OPTIONAL = {"MaxPool": 1, "Dropout": 1, "LayerNormalization": 1}


def _find_drop_unused(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes(*_OPTIONAL):
        last = node.outputs[-1]
        if len(node.outputs) > _OPTIONAL[node.op] and not last.outputs and not scope.is_fixed(last):
            yield Match(node)


def _apply_drop_unused(scope: Scope, match: Match) -> None:
    node = match.node
    while len(node.outputs) > _OPTIONAL[node.op] and not (
        node.outputs[-1].outputs or scope.is_fixed(node.outputs[-1])
    ):
        del node.outputs[-1]


DROP_UNUSED = Rule(
    "drop-unused",
    "Unused optional outputs are dropped: MaxPool's indices, Dropout's mask",
    "B",
    "operators in the form that the parser takes",
    _find_drop_unused,
    always,
    _apply_drop_unused,
    evidence=(
        builds("builds only with it, refuses MaxPool with two outputs"),
        builds("refuses MaxPool with two outputs", BUILT_HERE, AUDIT_RTX),
        builds("documented: MaxPool's indices are not supported", DOCUMENTED, MAXPOOL),
    ),
)
"""TensorRT's parser has no second output for most of these. Only trailing outputs can go."""


# ── erase-arithmetic ───────────────────────────────────────────────────────────────────────────────────────

_MOST_ELEMENTS = 1 << 16  # a bias is read to see whether it is zero, a table of weights is not
_NEUTRAL = {"Mul": 1.0, "Div": 1.0, "Pow": 1.0, "Add": 0.0, "Sub": 0.0}


def _find_erase_arithmetic(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes(*_NEUTRAL):
        places = (1, 0) if node.op in ("Mul", "Add") else (1,)
        for place in places:
            constant = node.inputs[place]
            small = scope.is_constant(constant) and np.prod(constant.shape) <= _MOST_ELEMENTS
            value = scope.value(constant) if small else None
            if value is not None and value.size and (value == _NEUTRAL[node.op]).all():
                yield Match(node, {"constant": node.inputs[place], "source": node.inputs[1 - place]})
                break


def _check_erase_arithmetic(scope: Scope, match: Match) -> str | None:
    constant, source = match.parts["constant"], match.parts["source"]
    rank = scope.rank(source)
    if len(constant.shape) and (rank is None or len(constant.shape) > rank):
        return "the constant may widen the shape"
    for axis, own in zip(reversed(constant.shape), reversed(source.shape or []), strict=False):
        if axis not in (1, own):
            return "the constant may widen the shape"
    return scope.why_not_bypass(match.node, source)


def _apply_erase_arithmetic(scope: Scope, match: Match) -> None:
    scope.bypass(match.node, match.parts["source"])


ERASE_ARITHMETIC = Rule(
    "erase-arithmetic",
    "x·1, x/1, x+0, x−0, x¹ → x, where the constant neither widens the shape nor changes the type",
    "B",
    "Scale erasure",
    _find_erase_arithmetic,
    _check_erase_arithmetic,
    _apply_erase_arithmetic,
    evidence=(
        layers("no layer for the constant; behind a convolution it does it itself"),
        quantises("nothing float between a convolution and the next layer"),
    ),
)
"""A scalar constant, or one of no more axes than x with every axis 1, cannot widen x. (x + 0 turns −0 into
+0: equal, and equal in every consumer but 1/x.)"""


# ── zero-state ─────────────────────────────────────────────────────────────────────────────────────────────

_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}


def _find_zero_state(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes(*_STATES):
        given = [place for place in _STATES[node.op] if place < len(node.inputs)]
        zeros = [place for place in given if is_filled_with(scope, node.inputs[place], 0)]
        if zeros:
            yield Match(node, {"places": zeros})


def _apply_zero_state(scope: Scope, match: Match) -> None:
    node = match.node
    for place in match.parts["places"]:
        scope.set_input(node, place, gs.Variable.empty())
    while node.inputs[-1].is_empty():
        node.inputs.pop()


ZERO_STATE = Rule(
    "zero-state",
    "LSTM, GRU or RNN whose initial state is zeros → the same without it: ONNX starts at zero by default",
    "B",
    "no shape layers",
    _find_zero_state,
    always,
    _apply_zero_state,
    evidence=(layers("does it itself"),),
)
"""Exporters compute zeros as long as the batch, out of its Shape. What computed them dies with them."""
