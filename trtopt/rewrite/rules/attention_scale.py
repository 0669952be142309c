"""Softmax((Q·Kᵀ)·c [+ mask]) → Softmax((Q·c)·Kᵀ [+ mask]).

A scalar commutes with the product. Before BMM1 it touches S×D values instead of S×S, keeps FP16 scores from
overflowing, and lies where the fused attention of TensorRT 10 and 11 requires it ("Fused Attention" in
TensorRT's documentation). TensorRT 8.6 has the scale after BMM1 in its own pattern: off unless requested.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.match import with_factor
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope
from trtopt.targets import targets_where


def _feeds_softmax(scope: Scope, tensor: Any) -> bool:
    """Whether the scores go to a Softmax, plainly or through the mask's Add or Where."""
    plus = scope.only_use(tensor, "Add", "Where")
    return scope.only_use(plus.outputs[0] if plus is not None else tensor, "Softmax") is not None


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Mul", "Div"):
        found = with_factor(scope, node)
        product = None if found is None else scope.producer(found[0], "MatMul")
        if found is not None and product is not None and _feeds_softmax(scope, node.outputs[0]):
            yield Match(node, {"product": product, "factor": found[1]})


def _check(scope: Scope, match: Match) -> str | None:
    product = match.parts["product"]
    query, key = product.inputs
    if scope.only_use(product.outputs[0]) is None:
        return "the unscaled scores are used elsewhere"
    if scope.is_constant(query) or scope.is_constant(key):
        return "one operand is constant: this is no attention"
    head = query.shape[-1] if query.shape else None
    if not isinstance(head, int) or not 16 <= head <= 256 or head % 8:
        return f"head size {head} is outside fused attention's conditions (16 to 256, a multiple of 8)"
    if scope.producer(query, "DequantizeLinear") is not None:
        return "the product is quantised: a scale between DQ and product would keep them apart"
    if not scope.is_float(query):
        return "the type of the scores is unknown"
    if not abs(match.parts["factor"]) <= float(np.finfo(scope.dtype(query)).max):
        return "the scale is no number of the queries' type"
    if not scope.same_rank(product.outputs[0], match.node.outputs[0]):
        return "the scale adds an axis"
    return None


def _apply(scope: Scope, match: Match) -> None:
    product = match.parts["product"]
    query = product.inputs[0]
    factor = scope.constant(np.array(match.parts["factor"], scope.dtype(query)), f"{match.node.name}/scale")
    product.inputs[0] = scope.compute(product, "Mul", [query, factor], query)
    scope.bypass(match.node, product.outputs[0])


RULE = Rule(
    "attention-scale",
    "N",
    "fused multi-head attention",
    _find,
    _check,
    _apply,
    stage=Stage.ATTENTION,
    targets=targets_where(lambda target: target.fuses_scaled_query),
    evidence=(layers("does not fuse, one layer more"),),
)
