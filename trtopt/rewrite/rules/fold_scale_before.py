"""Conv/Gemm fed by Mul, Div, Add or Sub with a constant → other weights and bias.

W·(c·x + d) + b = (W·c)·x + (b + Σ W·d), with c and d scalar or per input channel. A factor commutes with
zero padding (c·0 = 0); a shift does not (the padding would have to be d), so it needs an unpadded Conv.
Exported input normalisation, (x − mean)/std, vanishes this way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trtopt.rewrite.affine import bias_of, per_channel, why_not_scale, why_not_write
from trtopt.rewrite.evidence import layers, quantises
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Array, Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Conv", "Gemm"):
        first = scope.producer(node.inputs[0], "Mul", "Div", "Add", "Sub")
        if first is None:
            continue
        for place in (0, 1) if first.op in ("Mul", "Add") else (1,):
            if scope.is_constant(first.inputs[place]) and not scope.is_constant(first.inputs[1 - place]):
                yield Match(
                    node, {"first": first, "constant": first.inputs[place], "source": first.inputs[1 - place]}
                )
                break


def _in_channels(node: Any) -> int:
    weight = node.inputs[1].shape
    if node.op == "Conv":
        return int(weight[1]) * int(node.attrs.get("group", 1))
    return int(weight[1] if node.attrs.get("transB", 0) else weight[0])


def _channelwise(scope: Scope, match: Match) -> Array | None:
    rank = scope.rank(match.parts["source"])
    if rank is None or rank < 2:
        return None
    constant = scope.value(match.parts["constant"])
    widens = constant is not None and constant.size > 1
    if widens and match.parts["source"].shape[1] != _in_channels(match.node):
        return None  # one channel spread over several: the convolution would lose its channels
    found = per_channel(constant, _in_channels(match.node), rank)
    return None if found is None else found.astype(np.float64)


def _check(scope: Scope, match: Match) -> str | None:
    node, first = match.node, match.parts["first"]
    if scope.only_use(first.outputs[0]) is None:
        return f"the result of {first.op} is used elsewhere, or is an output"
    reason = why_not_scale(scope, node)
    if reason is not None:
        return reason
    value = _channelwise(scope, match)
    if value is None:
        return "the constant is neither scalar nor per input channel, or makes the channels"
    if first.op == "Div" and not value.all():
        return "it divides by zero"
    if node.op == "Gemm" and (node.attrs.get("transA", 0) or node.attrs.get("alpha", 1.0) != 1.0):
        return "the Gemm transposes or scales its input"
    padded = any(node.attrs.get("pads", [])) or node.attrs.get("auto_pad", "NOTSET") not in (
        "NOTSET",
        "VALID",
    )
    if first.op in ("Add", "Sub") and padded:
        return "a shift does not commute with zero padding"
    return why_not_write(scope.dtype(node.inputs[1]), *_folded(scope, match, value))


def _folded(scope: Scope, match: Match, value: Array) -> tuple[Array, Array]:
    """The weight and the bias that take up the constant, in float64."""
    node, op = match.node, match.parts["first"].op
    weight, bias = np.asarray(scope.value(node.inputs[1]), np.float64), bias_of(scope, node)
    if node.op == "Conv":
        groups = int(node.attrs.get("group", 1))
        rows = np.repeat(value.reshape(groups, -1), weight.shape[0] // groups, axis=0)
        spread = rows.reshape(weight.shape[0], -1, *[1] * (weight.ndim - 2))
        summed = tuple(range(1, weight.ndim))
    else:
        spread = value[None, :] if node.attrs.get("transB", 0) else value[:, None]
        summed = (1,) if node.attrs.get("transB", 0) else (0,)
    with np.errstate(all="ignore"):  # an infinite constant or result declines
        if op in ("Mul", "Div"):
            return (weight * spread if op == "Mul" else weight / spread), bias
        moved = (weight * spread).sum(axis=summed)
        return weight, bias + moved if op == "Add" else bias - moved


def _apply(scope: Scope, match: Match) -> None:
    node, value = match.node, _channelwise(scope, match)
    if value is None:
        return
    dtype = scope.dtype(node.inputs[1])
    weight, bias = (values.astype(dtype) for values in _folded(scope, match, value))
    if match.parts["first"].op in ("Mul", "Div"):
        node.inputs[1] = scope.constant(weight, node.inputs[1].name)
    else:
        node.attrs.pop("beta", None)
        new = scope.constant(bias, f"{node.name}/bias")
        if len(node.inputs) > 2:
            node.inputs[2] = new
        else:
            node.inputs.append(new)
    scope.set_input(node, 0, match.parts["source"])


RULE = Rule(
    "fold-scale-before",
    "N",
    "Convolution+Scale",
    _find,
    _check,
    _apply,
    stage=Stage.CONVOLUTION,
    after=("pad-into-conv",),
    evidence=(
        layers("one kernel instead of three layers"),
        quantises("nothing float in front of a convolution"),
    ),
)
