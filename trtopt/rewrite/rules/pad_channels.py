"""Conv → activations → Conv with C channels between → the same with C rounded up; MatMul, Gemm too.

The new channels have zero weights and zero bias where they are made and zero weights where they are summed,
so whatever the activations make of them adds nothing: Σ over more channels of w·a with w = 0. Tensor Cores
take 8 FP16 channels at a time, or 32 INT8 ones (behind a DequantizeLinear). Only whole chains are padded, so
no Pad or Slice is needed. Off unless requested: measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtopt.rewrite import channels
from trtopt.rewrite.evidence import layers, quantises
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope

_HALF_UNIT, _INT8_UNIT = 8, 32


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Conv", "MatMul", "Gemm"):
        weight = _weight(scope, node)
        unit = _INT8_UNIT if channels.held(scope, node, 1).quantisers else _HALF_UNIT
        plain = scope.is_constant(weight) and (len(weight.shape) == 2) == (node.op != "Conv")
        made = int(weight.shape[channels.made_along(node)]) if plain else 0
        if made % unit:
            yield Match(node, {"channels": made, "more": -made % unit})


def _check(scope: Scope, match: Match) -> str | None:
    node = match.node
    if node.attrs.get("group", 1) != 1:
        return "a grouped convolution ties its channels"
    if node.op == "MatMul" and channels.channel_axis(scope, node) in (None, 0):
        return "the rank of the product is unknown, or it is a vector"
    if match.parts["channels"] < _HALF_UNIT:
        return "with fewer than 8 channels, padding costs more than it brings"
    if _has_odd_bias(scope, match):
        return "its bias has a shape of its own"
    flow = channels.flow_of(scope, node)
    if flow.problem is not None:
        return flow.problem
    if node.op != "Conv" and any(len(_weight(scope, end).shape or ()) != 2 for end in flow.ends):
        return "it is multiplied with something else than a matrix"
    weights = [(node, 1), (node, 2), *((end, 1) for end in flow.ends)]
    reasons = (channels.why_not_widen(scope, *weight) for weight in weights)
    return next((reason for reason in reasons if reason), None)


def _weight(scope: Scope, node: Any) -> Any:
    found = channels.held(scope, node, 1)
    return found.reader.inputs[found.position]


def _has_odd_bias(scope: Scope, match: Match) -> bool:
    """Whether the bias is neither missing, nor one value a channel."""
    node = match.node
    if node.op == "MatMul" or len(node.inputs) < 3 or node.inputs[2].is_empty():
        return False
    return tuple(node.inputs[2].shape or ()) != (match.parts["channels"],)


def _apply(scope: Scope, match: Match) -> None:
    node, more = match.node, match.parts["more"]
    flow, axis = channels.flow_of(scope, node), channels.channel_axis(scope, node)
    channels.widen(scope, node, 1, channels.made_along(node), more)
    channels.widen(scope, node, 2, 0, more)
    for user, place in flow.constants:
        channels.widen_operand(scope, user, place, more)
    for end in flow.ends:
        channels.widen(scope, end, 1, 1 - channels.made_along(end), more)
    for tensor in flow.tensors:
        scope.reshape(tensor, axis or 0, more)


RULE = Rule(
    "pad-channels",
    "N",
    "Tensor Core kernels",
    _find,
    _check,
    _apply,
    stage=Stage.MERGING,
    targets=(),
    evidence=(layers("as many layers, other tactics"), quantises("layers too narrow before")),
)
