"""What stands next to a convolution or a product goes into its weights and attributes."""

from __future__ import annotations

from typing import Any

import numpy as np

from trtopt.rewrite.match import axes_of, keeps_axes, operand, square_of, with_constants
from trtopt.rewrite.rule import Verdict, at, layers, quantizes, rule
from trtopt.rewrite.scope import Array, Scope

WEIGHTED = ("Conv", "ConvTranspose", "Gemm")
_COPIED_BYTES = 1 << 20  # a head that detectors run over several levels, each with moments of its own


def _channel_axis(node: Any, *, inputs: bool) -> int:
    """The axis of the weight that counts the node's input channels, or its output channels."""
    counts_outputs_first = node.attrs.get("transB", 0) if node.op == "Gemm" else node.op == "Conv"
    return int(bool(counts_outputs_first) == inputs)


def _groups(node: Any, axis: int) -> int:
    """How many times the channels of one group, which the second axis of a kernel counts, are there."""
    return int(node.attrs.get("group", 1)) if axis and node.op != "Gemm" else 1


def _channels(node: Any, *, inputs: bool = False) -> int:
    """How many output channels, or input channels, a node with a constant weight has."""
    axis = _channel_axis(node, inputs=inputs)
    return int(node.inputs[1].shape[axis]) * _groups(node, axis)


def _spread(node: Any, values: Array, *, inputs: bool = False) -> Array:
    """A value for each output channel, or input channel, in a shape that broadcasts to the weight's."""
    axis, shape = _channel_axis(node, inputs=inputs), node.inputs[1].shape
    rows, ones = values.reshape(_groups(node, axis), -1), [1] * (len(shape) - 2)
    if not axis:
        return rows.reshape(-1, 1, *ones)
    if len(rows) > 1:  # each group's channels for all rows of its own
        rows = np.repeat(rows, shape[0] // len(rows), axis=0)
    return rows.reshape(*rows.shape, *ones)


def why_not_scale(scope: Scope, node: Any) -> str | None:
    """Why the constants of `node` cannot take up a factor; None if they can."""
    weight = node.inputs[1]
    if scope.value(weight) is None or not scope.is_float(weight):
        return "its weight is computed, quantised or of a type that NumPy lacks"
    if 0 in weight.shape:
        return "its weight is empty"
    if len(weight.outputs) > 1 and weight._values.nbytes > _COPIED_BYTES:
        return "its weight is shared with another node: a second copy would cost its size"
    if operand(node, 2) is not None:
        bias = scope.value(node.inputs[2])
        if bias is None:
            return "its bias is computed"
        if bias.size not in (1, _channels(node)) or bias.size != (bias.shape or (1,))[-1]:
            return "its bias has a shape of its own"
    return None


def why_not_write(dtype: Any, weight: Array, bias: Array) -> str | None:
    """Why new constants, in float64, cannot be written as `dtype`; None if they can."""
    limits = np.finfo(dtype)
    largest = [np.abs(values).max(initial=0.0) for values in (weight, bias)]
    lost = 0 < largest[0] < limits.smallest_normal
    if lost or not all(each <= limits.max for each in largest):  # NaN is not
        return f"the new weights or bias would leave FP{limits.bits}'s range"
    return None


def bias_of(scope: Scope, node: Any) -> Array:
    """What `node` adds, in float64: one value, or one for each output channel."""
    if operand(node, 2) is None:
        return np.zeros(1)
    beta = float(node.attrs.get("beta", 1.0)) if node.op == "Gemm" else 1.0
    return beta * np.asarray(scope.value(node.inputs[2]), np.float64).reshape(-1)


def _scale(scope: Scope, node: Any, factor: Array, shift: Array) -> tuple[Array, Array]:
    """The scaled weight and the scaled and shifted bias, in float64."""
    weight, channels = np.asarray(scope.value(node.inputs[1]), np.float64), _channels(node)
    factor, shift = np.broadcast_to(factor, channels), np.broadcast_to(shift, channels)
    with np.errstate(all="ignore"):  # FP64 may overflow, which declines
        return weight * _spread(node, factor), factor * bias_of(scope, node) + shift


def set_bias(scope: Scope, node: Any, bias: Array, like: str) -> None:
    """Give `node` another bias; one of zeros is none."""
    node.attrs.pop("beta", None)
    new = scope.constant(bias, like)
    if len(node.inputs) > 2:
        node.inputs[2] = new
    elif bias.any():
        node.inputs.append(new)


def _per_channel(scope: Scope, constant: Any, tensor: Any, channels: int) -> Array | None:
    """A constant operand of a tensor as one value a channel (axis 1), in float64; None if it is none."""
    value, rank = scope.value(constant), scope.rank(tensor)
    if value is None or rank is None or value.ndim > rank:
        return None
    full = np.reshape(value, (1,) * (rank - value.ndim) + value.shape)
    fits = full.size == 1 or (full.shape[1] == channels and full.size == channels)
    return np.broadcast_to(np.reshape(full, -1), (channels,)).astype(np.float64) if fits else None


@rule(
    "ReduceMean over all spatial axes with keepdims, outside normalisations → GlobalAveragePool",
    "N",
    "Reduce→Pooling",
    evidence=(layers("does it itself"), quantizes("the pool in INT8")),
)
@at("ReduceMean")
def reduce_to_pool(scope: Scope, node: Any) -> Verdict | None:
    """Both are the mean over H×W (and D).

    TensorRT then has a pooling layer, which fuses with its neighbours and has INT8 kernels; a Reduce has
    neither. The means of a normalisation stay: builders know it by them.
    """
    source, rank = node.inputs[0], scope.rank(node.inputs[0])
    if rank not in (4, 5) or axes_of(scope, node) != list(range(2, rank)):
        return None
    if not keeps_axes(node):
        return "the axes are dropped, which a pool cannot do"
    if not scope.is_float(source):
        return "the type is not FP32 or FP16"
    if _normalises(scope, node):
        return "it is the mean or the variance of a normalisation"
    return lambda: scope.replace(node, "GlobalAveragePool", [source])


def _normalises(scope: Scope, node: Any) -> bool:
    source, users = node.inputs[0], node.outputs[0].outputs
    centres = any(scope.is_one_of(user, "Sub") and user.inputs[0] is source for user in users)
    return centres or square_of(scope, source) is not None


# ── pad-into-conv ──────────────────────────────────────────────────────────────────────────────────────────


def _pads(scope: Scope, pad: Any) -> list[int] | None:
    """Padding of every axis, begins then ends, the `axes` input resolved."""
    rank, given = scope.rank(pad.inputs[0]), scope.integers(pad, "pads", 1)
    if rank is None or given is None:
        return None
    if operand(pad, 3) is None:
        return given
    axes = scope.integers(pad, "", 3)
    if axes is None:
        return None
    full = [0] * (2 * rank)
    for place, axis in enumerate(axes):
        full[axis % rank], full[rank + axis % rank] = given[place], given[len(axes) + place]
    return full


@rule(
    "Conv(Pad(x)) → Conv with larger pads; also AveragePool with count_include_pad, MaxPool after −∞",
    "B",
    "Padding+Convolution",
    evidence=(
        layers("no Padding in front of a pool; in front of a convolution it does it itself"),
        quantizes("no Q/DQ between a Pad and its convolution"),
    ),
)
@at("Conv", "AveragePool", "MaxPool")
def pad_into_conv(scope: Scope, node: Any) -> Verdict | None:
    """A convolution reads zeros beyond its input's edge, so zeros padded on the spatial axes are its own.

    pads' = pads + Pad's. Enables TensorRT's Padding + Convolution in one kernel.
    """
    pad = scope.producer(node.inputs[0], "Pad")
    if pad is None:
        return None
    pads, mode = _pads(scope, pad), pad.attrs.get("mode", "constant")
    if mode != "constant":
        return f"the padding mode is {mode}"
    if pads is None:
        return "the amount of padding is computed"
    half = len(pads) // 2
    if any(pads[:2]) or any(pads[half : half + 2]):
        return "batch or channels are padded"
    if min(pads) < 0:
        return "it cuts instead of padding"
    given = operand(pad, 2)
    value = float(pad.attrs.get("value", 0.0)) if given is None else scope.scalar(given)
    wanted = -np.inf if node.op == "MaxPool" else 0.0
    if value != wanted:
        return f"it pads with {'a computed value' if value is None else value}, not {wanted}"
    if node.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return "auto_pad depends on the input's size"
    own, more = node.attrs.get("pads", [0] * (2 * half - 4)), [*pads[2:half], *pads[half + 2 :]]
    if node.op == "AveragePool" and (not node.attrs.get("count_include_pad") or node.attrs.get("ceil_mode")):
        return "padded places do not count in the average"
    if node.op == "MaxPool" and len(node.outputs) > 1:
        return "the indices would change"
    if node.attrs.get("ceil_mode"):
        return "its last window may begin in the padding"
    kernel = node.attrs.get("kernel_shape")
    if node.op != "Conv" and any(
        have + extra >= size for have, extra, size in zip(own, more, [*kernel, *kernel], strict=True)
    ):
        return "a pool's padding must be smaller than its window"
    if scope.only_use(pad.outputs[0]) is None:
        return "the padded tensor is used elsewhere"

    def apply() -> None:
        node.attrs["pads"] = [have + extra for have, extra in zip(own, more, strict=True)]
        node.attrs.pop("auto_pad", None)
        scope.set_input(node, 0, pad.inputs[0])

    return apply


# ── what follows ───────────────────────────────────────────────────────────────────────────────────────────


def _follow(scope: Scope, node: Any, first: Any, factor: Array, shift: Array) -> Verdict:
    """Let `first` make what `node` makes of its result, factor·y + shift; both per output channel."""
    if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
        return "the scale or shift is infinite or no number"
    dtype, old = scope.dtype(first.inputs[1]), operand(first, 2)
    weight, bias = _scale(scope, first, factor, shift)

    def apply() -> None:
        first.inputs[1] = scope.constant(weight.astype(dtype), first.inputs[1].name)
        set_bias(scope, first, bias.astype(dtype), f"{first.name}/bias" if old is None else old.name)
        scope.bypass(node, first.outputs[0])

    return why_not_write(dtype, weight, bias) or apply


@rule(
    "Conv/ConvTranspose/Gemm followed by BatchNormalization → the first with other weights",
    "N",
    "right scales, one kernel",
    evidence=(
        layers("no Scale behind Gemm; behind convolutions it does it itself"),
        quantizes("right scales: the weights are the folded ones"),
    ),
)
@at("BatchNormalization")
def fold_batchnorm(scope: Scope, node: Any) -> Verdict | None:
    """y = γ·(W·x + b − μ)/√(σ² + ε) + β = (s·W)·x + (s·(b − μ) + β), with s = γ/√(σ² + ε) per output channel.

    Computed in float64 and rounded once. TensorRT fuses the pair by itself, but Q/DQ placement, scales and
    INT8 ranges are right only if the weights have been folded before.
    """
    first = scope.producer(node.inputs[0], *WEIGHTED)
    if first is None:
        return None
    if node.attrs.get("training_mode", 0) or len(node.outputs) > 1:
        return "it is in training mode"
    if any(scope.value(tensor) is None for tensor in node.inputs[1:5]):
        return "its statistics are not constant"
    return _why_not_take(scope, first) or _follow(scope, node, first, *_affine_of_moments(scope, node))


def _why_not_take(scope: Scope, first: Any) -> str | None:
    """Why what follows `first` cannot go into its constants."""
    if scope.only_use(first.outputs[0]) is None:
        return f"the result of {first.op} is used elsewhere, or is an output"
    return why_not_scale(scope, first)


def _affine_of_moments(scope: Scope, node: Any) -> tuple[Array, Array]:
    gamma, beta, mean, variance = (np.asarray(scope.value(tensor), np.float64) for tensor in node.inputs[1:5])
    with np.errstate(all="ignore"):  # a negative variance makes NaN, which declines
        factor = gamma / np.sqrt(variance + float(node.attrs.get("epsilon", 1e-5)))
        return factor, beta - factor * mean


@rule(
    "Conv/ConvTranspose/Gemm followed by Mul, Div, Add or Sub with a constant → other weights and bias",
    "N",
    "Convolution+Scale",
    evidence=(
        layers("one kernel instead of three layers"),
        quantizes("nothing float between a convolution and the next layer"),
    ),
)
@at("Mul", "Div", "Add", "Sub")
def fold_scale(scope: Scope, node: Any) -> Verdict | None:
    """c·(W·x + b) + d = (c·W)·x + (c·b + d), with c and d scalar or per output channel.

    Computed in float64 and rounded once. Enables TensorRT's Convolution + Scale, also where it would not see
    it.
    """
    pairs = ((scope.producer(other, *WEIGHTED), constant) for other, constant in with_constants(scope, node))
    first, constant = next((pair for pair in pairs if pair[0] is not None), (None, None))
    if first is None:
        return None
    reason = _why_not_take(scope, first)
    if reason is not None:
        return reason
    value = _per_channel(scope, constant, first.outputs[0], _channels(first))
    if value is None:
        return "the constant is neither scalar nor per output channel"
    if node.op == "Div" and not value.all():
        return "it divides by zero"
    return _follow(scope, node, first, *_affine_of_operator(node.op, value))


def _affine_of_operator(op: str, value: Array) -> tuple[Array, Array]:
    one, zero = np.ones(1), np.zeros(1)
    if op in ("Add", "Sub"):
        return one, value if op == "Add" else -value
    return value if op == "Mul" else 1 / value, zero


# ── what goes before ───────────────────────────────────────────────────────────────────────────────────────


@rule(
    "Conv/Gemm fed by Mul, Div, Add or Sub with a constant → other weights and bias",
    "N",
    "Convolution+Scale",
    evidence=(
        layers("one kernel instead of three layers"),
        quantizes("nothing float in front of a convolution"),
    ),
)
@at("Conv", "Gemm")
def fold_scale_before(scope: Scope, node: Any) -> Verdict | None:
    """W·(c·x + d) + b = (W·c)·x + (b + Σ W·d), with c and d scalar or per input channel.

    A factor commutes with zero padding (c·0 = 0); a shift does not (the padding would have to be d), so it
    needs an unpadded Conv. Exported input normalisation, (x − mean)/std, vanishes this way.
    """
    first = scope.producer(node.inputs[0], "Mul", "Div", "Add", "Sub")
    if first is None:
        return None
    pairs = (pair for pair in with_constants(scope, first) if not scope.is_constant(pair[0]))
    source, constant = next(pairs, (None, None))
    if source is None:
        return None
    if scope.only_use(first.outputs[0]) is None:
        return f"the result of {first.op} is used elsewhere, or is an output"
    reason = why_not_scale(scope, node)
    if reason is not None:
        return reason
    value = _by_input_channel(scope, node, constant, source)
    if value is None:
        return "the constant is neither scalar nor per input channel, or makes the channels"
    if first.op == "Div" and not value.all():
        return "it divides by zero"
    if node.op == "Gemm" and (node.attrs.get("transA", 0) or node.attrs.get("alpha", 1.0) != 1.0):
        return "the Gemm transposes or scales its input"
    is_unpadded = node.attrs.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    if first.op in ("Add", "Sub") and (any(node.attrs.get("pads", [])) or not is_unpadded):
        return "a shift does not commute with zero padding"
    weight, bias = _fold_constant(scope, node, first.op, value)
    dtype = scope.dtype(node.inputs[1])

    def apply() -> None:
        if first.op in ("Mul", "Div"):
            node.inputs[1] = scope.constant(weight.astype(dtype), node.inputs[1].name)
        else:
            set_bias(scope, node, bias.astype(dtype), f"{node.name}/bias")
        scope.set_input(node, 0, source)

    return why_not_write(dtype, weight, bias) or apply


def _by_input_channel(scope: Scope, node: Any, constant: Any, source: Any) -> Array | None:
    channels = _channels(node, inputs=True)
    if (scope.rank(source) or 0) < 2:
        return None
    if int(np.prod(constant.shape)) > 1 and source.shape[1] != channels:
        return None  # one channel spread over several: the convolution would lose its channels
    return _per_channel(scope, constant, source, channels)


def _fold_constant(scope: Scope, node: Any, op: str, value: Array) -> tuple[Array, Array]:
    """The weight and the bias that take up the constant, in float64."""
    weight, bias = np.asarray(scope.value(node.inputs[1]), np.float64), bias_of(scope, node)
    spread, kept = _spread(node, value, inputs=True), _channel_axis(node, inputs=False)
    with np.errstate(all="ignore"):  # an infinite constant or result declines
        if op in ("Mul", "Div"):
            return (weight * spread if op == "Mul" else weight / spread), bias
        moved = (weight * spread).sum(axis=tuple(axis for axis in range(weight.ndim) if axis != kept))
        return weight, bias + moved if op == "Add" else bias - moved
