"""Operators that return their input unchanged (y = x) are removed.

Identity(x), Dropout(x) outside training, Cast(x) to the type that x has. An Identity over an initializer,
which exporters write where several layers share weights, gives way to the initializer itself: TensorRT takes
weights and bias of a convolution only from constants, and runs such leftovers as kernels of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from trtopt.rewrite.evidence import layers, quantises
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Identity", "Dropout", "Cast"):
        source = node.inputs[0]
        if node.op == "Cast":
            known = scope.dtype(source)
            if known is None or onnx.helper.np_dtype_to_tensor_dtype(known) != node.attrs["to"]:
                continue
        yield Match(node)


def _check(scope: Scope, match: Match) -> str | None:
    node = match.node
    if node.op == "Dropout":
        if len(node.outputs) > 1 and (node.outputs[1].outputs or scope.is_fixed(node.outputs[1])):
            return "its mask is used"
        given = len(node.inputs) > 2 and not node.inputs[2].is_empty()
        old = scope.opset < 7 and not node.attrs.get("is_test", 0)
        if old or (given and scope.scalar(node.inputs[2]) != 0):
            return "it may be in training mode"
    return scope.why_not_bypass(node, node.inputs[0])


def _apply(scope: Scope, match: Match) -> None:
    scope.bypass(match.node, match.node.inputs[0])


RULE = Rule(
    "erase-identity",
    "B",
    "constant weights and bias; no copies between kernels",
    _find,
    _check,
    _apply,
    stage=Stage.CLEANING,
    after=("inline-if",),
    evidence=(
        layers("one layer less, two between a convolution and its activation"),
        quantises("batch norms behind copies are folded"),
    ),
)
