"""The channels that a Conv, MatMul or Gemm makes are padded to what Tensor Cores take.

They go through operators that treat each channel alike and end in products that sum over them. A channel more
with weight 0 there changes nothing, whatever finite value it has on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from trtopt.rewrite.evidence import layers, quantises
from trtopt.rewrite.match import operand
from trtopt.rewrite.rule import Verdict, at, rule
from trtopt.rewrite.scope import STANDARD, Array, Scope

_UNARY = ("Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "Gelu",
          "Softplus", "Erf", "Neg", "Abs", "Identity", "Dropout", "Exp", "Pow", "Cast")  # fmt: skip
_STEEP = ("Exp", "Pow")
_POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}
_QUANTISERS = ("DequantizeLinear", "QuantizeLinear")


@dataclass
class Flow:
    """Where channels go: tensors on their way, constants with an entry for each, products at their end."""

    tensors: list[Any] = field(default_factory=list)
    constants: list[tuple[Any, int]] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)
    problem: str | None = None


def channel_axis(scope: Scope, node: Any) -> int | None:
    """Where in its output the channels of `node` lie; None if the rank is unknown."""
    rank = scope.rank(node.outputs[0])
    return rank if rank is None else 1 if node.op == "Conv" else rank - 1


def made_along(node: Any) -> int:
    """The axis of its weight along which the output channels of `node` lie."""
    return 0 if node.op == "Conv" or (node.op == "Gemm" and node.attrs.get("transB", 0)) else 1


def flow_of(scope: Scope, node: Any) -> Flow:
    """Follow the channels that `node` makes; `problem` says where they cannot be followed."""
    flow, pending, seen, inner = Flow(), [node.outputs[0]], set(), []
    while pending and flow.problem is None:
        tensor = pending.pop()
        flow.tensors.append(tensor)
        if scope.is_fixed(tensor) or not scope.is_read_only_here(tensor):
            flow.problem = "its channels are an output of the graph, or another graph reads them"
        for user in tensor.outputs:
            if _sums_over_channels(scope, user, tensor, node.op):
                flow.ends.append(user)
            elif id(user) not in seen:
                seen.add(id(user))
                inner.append(user)
                pending.append(user.outputs[0])
                flow.problem = flow.problem or _why_not_through(scope, user, node.op)
    if sum(user.op in _STEEP for user in inner) > 1:
        flow.problem = flow.problem or "of several Exp or Pow new channels may become infinite"
    known = {id(tensor) for tensor in flow.tensors}
    for user in inner if flow.problem is None else ():
        if user.op in _NEUTRAL:
            flow.problem = flow.problem or _take_operands(scope, flow, user, node, known)
    if flow.problem is None and not flow.ends:
        flow.problem = "nothing sums over its channels"
    return flow


def _sums_over_channels(scope: Scope, user: Any, tensor: Any, op: str) -> bool:
    if user.inputs[0] is not tensor or any(other is tensor for other in user.inputs[1:]):
        return False
    if op == "Conv":
        return bool(scope.is_one_of(user, "Conv") and user.attrs.get("group", 1) == 1)
    return scope.is_one_of(user, "MatMul", "Gemm") and not user.attrs.get("transA", 0)


def _why_not_through(scope: Scope, user: Any, op: str) -> str | None:
    """Why channels cannot be followed through `user`."""
    elsewhere = f"its channels reach {user.op} node {user.name!r}"
    if user.domain not in STANDARD or len(user.outputs) != 1:
        return elsewhere
    if user.op in _NEUTRAL:
        return None
    rest = [item for item in user.inputs[1:] if not item.is_empty()]
    if user.op in _QUANTISERS:
        return None if all(np.prod(item.shape or ()) == 1 for item in rest) else f"{elsewhere}, per channel"
    if user.op == "Pow":
        return None if (scope.scalar(user.inputs[1]) or 0.0) > 0 else elsewhere
    if user.op in _POOLS and op == "Conv":
        return None
    plain = user.op in _UNARY and all(scope.scalar(item) is not None for item in rest)
    return None if plain else elsewhere


def _keeps_zeros(op: str, place: int, value: Any) -> bool:
    """Whether a channel of zeros stays finite with this one value at its side."""
    divides = op == "Div" and place == 1
    return bool(np.isfinite(value).all()) and not (divides and not value.all())


def _take_operands(scope: Scope, flow: Flow, user: Any, node: Any, known: set[int]) -> str | None:
    """Note the other operand of an arithmetic node: of the flow itself, a scalar, or one value a channel."""
    rank, axis = scope.rank(node.outputs[0]), channel_axis(scope, node)
    if user.op == "Div" and id(user.inputs[1]) in known:
        return f"Div node {user.name!r} divides by its channels, of which new ones are 0"
    for place, other in enumerate(user.inputs):
        value = scope.value(other)
        if value is not None and value.size == 1 and not _keeps_zeros(user.op, place, value):
            return f"{user.op} node {user.name!r} would make new channels infinite or NaN"
        if id(other) in known or (value is not None and value.ndim == 0):
            continue
        if value is None or rank is None or axis is None or value.ndim > rank:
            return f"{user.op} node {user.name!r} mixes its channels with other values"
        if value.size == 1:
            continue
        places = [place + rank - value.ndim for place, size in enumerate(value.shape) if size != 1]
        if places != [axis]:
            return f"{user.op} node {user.name!r} has a constant that varies along another axis"
        flow.constants.append((user, place))
    return None


@dataclass(frozen=True)
class Held:
    """A constant behind at most a QuantizeLinear and a DequantizeLinear, and the node that reads it."""

    reader: Any
    position: int
    quantisers: tuple[Any, ...]


def held(scope: Scope, node: Any, position: int) -> Held:
    """The constant behind an input."""
    quantisers: list[Any] = []
    reader, place = node, position
    for op in _QUANTISERS:
        maker = scope.producer(reader.inputs[place], op)
        if maker is not None:
            quantisers.append(maker)
            reader, place = maker, 0
    return Held(reader, place, tuple(quantisers))


def why_not_widen(scope: Scope, node: Any, position: int) -> str | None:
    """Why entries cannot be added to the constant behind an input; None if they can, or there is no input."""
    if operand(node, position) is None:
        return None
    found = held(scope, node, position)
    tensor = found.reader.inputs[found.position]
    if scope.value(tensor) is None:
        return "a weight is computed, or of a type that NumPy lacks"
    if len(tensor.outputs) > 1 or any(scope.only_use(item.outputs[0]) is None for item in found.quantisers):
        return "a weight is shared with another node"
    for item in found.quantisers:
        given = operand(item, 2)
        zero = None if given is None else scope.value(given)
        if scope.value(item.inputs[1]) is None or (given is not None and (zero is None or zero.any())):
            return "a scale is computed, or a zero point is not 0"
        if item.attrs.get("block_size", 0):
            return "a weight is quantised in blocks"
    return None


def widen(scope: Scope, node: Any, position: int, axis: int, more: int) -> None:
    """Add `more` zeros along an axis of the constant behind an input, and scales for them."""
    if operand(node, position) is None:
        return
    found = held(scope, node, position)
    _grow(scope, found.reader, found.position, axis, more, np.zeros)
    for item in found.quantisers:
        own = item.attrs.get("axis", 1) % max(len(item.outputs[0].shape or (1, 1)), 1)
        for place in range(1, len(item.inputs)):
            if own == axis and not item.inputs[place].is_empty() and np.prod(item.inputs[place].shape) > 1:
                _grow(scope, item, place, 0, more, np.ones if place == 1 else np.zeros)
        if item.outputs[0].shape is not None:
            scope.reshape(item.outputs[0], axis, more)


def widen_operand(scope: Scope, node: Any, position: int, more: int) -> None:
    """Add `more` neutral values to the constant operand of an arithmetic node."""
    value = np.asarray(scope.value(node.inputs[position]))
    axis = next(place for place, size in enumerate(value.shape) if size != 1)
    _grow(scope, node, position, axis, more, np.ones if _NEUTRAL[node.op] else np.zeros)


def _grow(scope: Scope, node: Any, position: int, axis: int, more: int, fill: Callable[..., Array]) -> None:
    tensor = node.inputs[position]
    value = np.asarray(scope.value(tensor))
    extra = fill([more if place == axis else size for place, size in enumerate(value.shape)], value.dtype)
    node.inputs[position] = scope.constant(np.concatenate([value, extra], axis), tensor.name)


# ── pad-channels ───────────────────────────────────────────────────────────────────────────────────────────

_HALF_UNIT, _INT8_UNIT = 8, 32


@rule(
    "Conv → activations → Conv with C channels between → the same with C rounded up; MatMul, Gemm too",
    "N",
    "Tensor Core kernels",
    targets=(),
    evidence=(layers("as many layers, other tactics"), quantises("layers too narrow before")),
)
@at("Conv", "MatMul", "Gemm")
def pad_channels(scope: Scope, node: Any) -> Verdict | None:
    """The new channels have zero weights and zero bias where they are made and zero weights where they are
    summed.

    So whatever the activations make of them adds nothing: Σ over more channels of w·a with w = 0. Tensor
    Cores take 8 FP16 channels at a time, or 32 INT8 ones (behind a DequantizeLinear). Only whole chains are
    padded, so no Pad or Slice is needed. Off unless requested: measure.
    """
    weight = _weight(scope, node)
    unit = _INT8_UNIT if held(scope, node, 1).quantisers else _HALF_UNIT
    plain = scope.is_constant(weight) and (len(weight.shape) == 2) == (node.op != "Conv")
    channels = int(weight.shape[made_along(node)]) if plain else 0
    if not channels % unit:
        return None
    if node.attrs.get("group", 1) != 1:
        return "a grouped convolution ties its channels"
    if node.op == "MatMul" and channel_axis(scope, node) in (None, 0):
        return "the rank of the product is unknown, or it is a vector"
    if channels < _HALF_UNIT:
        return "with fewer than 8 channels, padding costs more than it brings"
    bias = None if node.op == "MatMul" else operand(node, 2)
    if bias is not None and tuple(bias.shape or ()) != (channels,):
        return "its bias has a shape of its own"
    flow = flow_of(scope, node)
    if flow.problem is not None:
        return flow.problem
    if node.op != "Conv" and any(len(_weight(scope, end).shape or ()) != 2 for end in flow.ends):
        return "it is multiplied with something else than a matrix"
    weights = [(node, 1), (node, 2), *((end, 1) for end in flow.ends)]
    reasons = filter(None, (why_not_widen(scope, *weight) for weight in weights))
    return next(reasons, None) or partial(_pad, scope, node, flow, -channels % unit)


def _pad(scope: Scope, node: Any, flow: Flow, more: int) -> None:
    widen(scope, node, 1, made_along(node), more)
    widen(scope, node, 2, 0, more)
    for user, place in flow.constants:
        widen_operand(scope, user, place, more)
    for end in flow.ends:
        widen(scope, end, 1, 1 - made_along(end), more)
    for tensor in flow.tensors:
        scope.reshape(tensor, channel_axis(scope, node) or 0, more)


def _weight(scope: Scope, node: Any) -> Any:
    found = held(scope, node, 1)
    return found.reader.inputs[found.position]
