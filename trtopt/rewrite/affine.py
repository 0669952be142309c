"""Scaling and shifting what Conv, ConvTranspose and Gemm compute, by changing their constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from trtopt.rewrite.scope import Array, Scope

WEIGHTED = ("Conv", "ConvTranspose", "Gemm")
_COPIED_BYTES = 1 << 20  # a head that detectors run over several levels, each with moments of its own


def out_channels(node: Any) -> int:
    """How many output channels a node with a constant weight has."""
    weight = node.inputs[1].shape
    if node.op == "Conv":
        return int(weight[0])
    if node.op == "ConvTranspose":
        return int(weight[1]) * int(node.attrs.get("group", 1))
    return int(weight[0] if node.attrs.get("transB", 0) else weight[1])


def why_not_scale(scope: Scope, node: Any) -> str | None:
    """Why the constants of `node` cannot take up a factor; None if they can."""
    weight = node.inputs[1]
    if scope.value(weight) is None or not scope.is_float(weight):
        return "its weight is computed, quantised or of a type that NumPy lacks"
    if 0 in weight.shape:
        return "its weight is empty"
    if len(weight.outputs) > 1 and weight._values.nbytes > _COPIED_BYTES:
        return "its weight is shared with another node: a second copy would cost its size"
    if len(node.inputs) > 2 and not node.inputs[2].is_empty():
        bias = scope.value(node.inputs[2])
        if bias is None:
            return "its bias is computed"
        if bias.size not in (1, out_channels(node)) or bias.size != (bias.shape or (1,))[-1]:
            return "its bias has a shape of its own"
    return None


def why_not_hold(scope: Scope, node: Any, factor: Array, shift: Array) -> str | None:
    """Why the constants of `node`, scaled and shifted, cannot be written in their type; None if they can."""
    if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
        return "the scale or shift is infinite or no number"
    return why_not_write(scope.dtype(node.inputs[1]), *_scaled(scope, node, factor, shift))


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
    if len(node.inputs) < 3 or node.inputs[2].is_empty():
        return np.zeros(1)
    beta = float(node.attrs.get("beta", 1.0)) if node.op == "Gemm" else 1.0
    return beta * np.asarray(scope.value(node.inputs[2]), np.float64).reshape(-1)


def _scaled(scope: Scope, node: Any, factor: Array, shift: Array) -> tuple[Array, Array]:
    """The scaled weight and the scaled and shifted bias, in float64."""
    weight, channels = np.asarray(scope.value(node.inputs[1]), np.float64), out_channels(node)
    factor, shift = np.broadcast_to(factor, channels), np.broadcast_to(shift, channels)
    with np.errstate(all="ignore"):  # FP64 may overflow, which declines
        scaled = weight * _per_channel(node, weight, factor)
        return scaled, factor * bias_of(scope, node) + shift


def _per_channel(node: Any, weight: Array, factor: Array) -> Array:
    if node.op == "Conv":
        return factor.reshape(-1, *[1] * (weight.ndim - 1))
    if node.op == "Gemm":
        return factor[:, None] if node.attrs.get("transB", 0) else factor[None, :]
    groups = int(node.attrs.get("group", 1))
    rows = np.repeat(factor.reshape(groups, -1), weight.shape[0] // groups, axis=0)
    return rows.reshape(weight.shape[0], -1, *[1] * (weight.ndim - 2))


def scale_weights(scope: Scope, node: Any, factor: Array, shift: Array) -> None:
    """Let `node` make factor·y + shift of what it made; both per output channel, in float64."""
    dtype = scope.dtype(node.inputs[1])
    scaled, moved = (values.astype(dtype) for values in _scaled(scope, node, factor, shift))
    has_bias = len(node.inputs) > 2 and not node.inputs[2].is_empty()
    node.attrs.pop("beta", None)
    like = node.inputs[2].name if has_bias else f"{node.name}/bias"
    node.inputs[1] = scope.constant(scaled, node.inputs[1].name)
    new_bias = scope.constant(moved, like)
    if len(node.inputs) > 2:
        node.inputs[2] = new_bias
    elif has_bias or moved.any():
        node.inputs.append(new_bias)


def per_channel(value: Array | None, channels: int, rank: int) -> Array | None:
    """A constant operand of a tensor of `rank` as one value a channel (axis 1), or None."""
    if value is None or value.ndim > rank:
        return None
    full = np.reshape(value, (1,) * (rank - value.ndim) + value.shape)
    fits = full.size == 1 or (full.shape[1] == channels and full.size == channels)
    return np.broadcast_to(np.reshape(full, -1), (channels,)) if fits else None
