"""Softmax((Q·Kᵀ)·c [+ mask])·V → Attention(Q, K, V [, mask], scale = c), opset 23.

TensorRT 10.14 and later keep the one node whole, where they have to recognise the pattern otherwise ("Fused
Attention" in TensorRT's documentation, method 1). What no fused kernel fits, FP32 say, they then refuse to
build unless the network may be decomposed, as trtopt's builder does: a file for other tools should be FP16 or
BF16. A mask is expanded to a row for every query: ONNX Runtime's kernel broadcasts it over heads alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.match import inputs_either_way, why_not_one_node, with_factor
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope

_OPSET = 23
_RANK = 4


def _product(scope: Scope, tensor: Any) -> tuple[Any, float, list[Any]] | None:
    """The MatMul of scores that are scaled or not, the scale, and the nodes between."""
    node = scope.producer(tensor, "MatMul", "Mul", "Div")
    if node is None or node.op == "MatMul":
        return None if node is None else (node, 1.0, [node])
    found = with_factor(scope, node)
    product = None if found is None else scope.producer(found[0], "MatMul")
    return None if found is None or product is None else (product, found[1], [product, node])


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("MatMul"):
        softmax = scope.producer(node.inputs[0], "Softmax")
        if softmax is None:
            continue
        plus = scope.producer(softmax.inputs[0], "Add")
        ways = [(softmax.inputs[0], None)] if plus is None else inputs_either_way(plus)
        for scores, mask in ways:
            found = _product(scope, scores)
            if found is not None:
                product, factor, inner = found
                inner = [*inner, softmax, *([] if plus is None else [plus])]
                parts = {
                    "product": product,
                    "factor": factor,
                    "mask": mask,
                    "softmax": softmax,
                    "inner": inner,
                }
                yield Match(node, parts)
                break


def _check(scope: Scope, match: Match) -> str | None:
    if scope.target.operator_opset < _OPSET:
        return f"TensorRT {scope.target.name} does not read Attention"
    if scope.opset < _OPSET:
        return f"Attention needs opset {_OPSET}, the model has {scope.opset}: export it at {_OPSET}"
    query, key = match.parts["product"].inputs
    value, mask = match.node.inputs[1], match.parts["mask"]
    operands = (query, key, value)
    if any(scope.rank(tensor) != _RANK for tensor in operands):
        return "queries, keys and values are not known to have four axes"
    if any(scope.is_constant(tensor) for tensor in operands):
        return "one operand is constant: this is no attention"
    if any(scope.producer(tensor, "DequantizeLinear") is not None for tensor in operands):
        return "the products are quantised"
    if not scope.is_float(query) or len({scope.dtype(tensor) for tensor in operands}) > 1:
        return "the type of queries, keys and values is not known to be one"
    heads = {(tensor.shape[0], tensor.shape[1]) for tensor in operands}
    if (
        len(heads) > 1
        or None in next(iter(heads))
        or query.shape[-1] != key.shape[-2]
        or not isinstance(query.shape[-1], int)
    ):
        return "batch, heads and head size are not known to be the same everywhere"
    if match.parts["softmax"].attrs.get("axis", -1) not in (-1, _RANK - 1):
        return "the Softmax is not over the keys"
    if mask is not None and (scope.rank(mask) is None or not 2 <= len(mask.shape) <= _RANK):
        return "the mask is not known to have two to four axes"
    return why_not_one_node(scope, value, match.node, match.parts["inner"])


def _row_for_every_query(scope: Scope, match: Match) -> Any:
    query, key = match.parts["product"].inputs
    node, mask = match.node, match.parts["mask"]
    like = scope.variable(mask.name, np.dtype(np.int64))
    queries = scope.compute(node, "Shape", [query], like, start=2, end=3)
    keys = scope.compute(node, "Shape", [key], like, start=3, end=4)
    rows = scope.compute(node, "Concat", [queries, keys], like, axis=0)
    return scope.compute(node, "Expand", [mask, rows], mask)


def _apply(scope: Scope, match: Match) -> None:
    query, key = match.parts["product"].inputs
    keys = scope.compute(match.node, "Transpose", [key], key, perm=[0, 1, 3, 2])
    inputs = [query, keys, match.node.inputs[1]]
    if match.parts["mask"] is not None:
        inputs.append(_row_for_every_query(scope, match))
    scope.replace(match.node, "Attention", inputs, {"scale": match.parts["factor"]})


RULE = Rule(
    "attention",
    "N",
    "fused multi-head attention",
    _find,
    _check,
    _apply,
    stage=Stage.ATTENTION,
    targets=(),
    evidence=(layers("does not read it"),),
)
