"""Conv/ConvTranspose/Gemm followed by Mul, Div, Add or Sub with a constant → other weights and bias.

c·(W·x + b) + d = (c·W)·x + (c·b + d), with c and d scalar or per output channel. Computed in float64 and
rounded once. Enables TensorRT's Convolution + Scale, also where it would not see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trtopt.rewrite.affine import (
    WEIGHTED,
    out_channels,
    per_channel,
    scale_weights,
    why_not_hold,
    why_not_scale,
)
from trtopt.rewrite.evidence import layers, quantises
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Array, Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Mul", "Div", "Add", "Sub"):
        for place in (0, 1) if node.op in ("Mul", "Add") else (0,):
            first = scope.producer(node.inputs[place], *WEIGHTED)
            if first is not None and scope.is_constant(node.inputs[1 - place]):
                yield Match(node, {"first": first, "constant": node.inputs[1 - place]})
                break


def _channelwise(scope: Scope, first: Any, constant: Any) -> Array | None:
    """The constant as one value, or one for each output channel; None if it varies along another axis."""
    rank = scope.rank(first.outputs[0])
    found = None if rank is None else per_channel(scope.value(constant), out_channels(first), rank)
    return None if found is None else found.astype(np.float64)


def _check(scope: Scope, match: Match) -> str | None:
    first = match.parts["first"]
    if scope.only_use(first.outputs[0]) is None:
        return f"the result of {first.op} is used elsewhere, or is an output"
    reason = why_not_scale(scope, first)
    if reason is not None:
        return reason
    value = _channelwise(scope, first, match.parts["constant"])
    if value is None:
        return "the constant is neither scalar nor per output channel"
    if match.node.op == "Div" and not value.all():
        return "it divides by zero"
    return why_not_hold(scope, first, *_factor_and_shift(match.node.op, value))


def _factor_and_shift(op: str, value: Array) -> tuple[Array, Array]:
    one, zero = np.ones(1), np.zeros(1)
    if op in ("Add", "Sub"):
        return one, value if op == "Add" else -value
    return value if op == "Mul" else 1 / value, zero


def _apply(scope: Scope, match: Match) -> None:
    node, first = match.node, match.parts["first"]
    value = _channelwise(scope, first, match.parts["constant"])
    if value is None:
        return
    scale_weights(scope, first, *_factor_and_shift(node.op, value))
    scope.bypass(node, first.outputs[0])


RULE = Rule(
    "fold-scale",
    "N",
    "Convolution+Scale",
    _find,
    _check,
    _apply,
    stage=Stage.CONVOLUTION,
    after=("pad-into-conv",),
    evidence=(
        layers("one kernel instead of three layers"),
        quantises("nothing float between a convolution and the next layer"),
    ),
)
