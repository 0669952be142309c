"""What suits some targets or requests alone: attention's scale, merged products, what a parser lacks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from trtopt.rewrite.match import with_factor
from trtopt.rewrite.rule import MERGED, PARSER_8_6, Match, Verdict, at, builds, faster, layers, rule
from trtopt.rewrite.scope import Scope
from trtopt.targets import HEAD_SIZES, targets_where

# ── attention-scale ────────────────────────────────────────────────────────────────────────────────────────


@rule(
    "Softmax((Q·Kᵀ)·c [+ mask]) → Softmax((Q·c)·Kᵀ [+ mask])",
    "N",
    "fused multi-head attention",
    targets=targets_where(lambda target: target.fuses_scaled_query),
    evidence=(layers("does not fuse, one layer more"),),
)
@at("Mul", "Div")
def attention_scale(scope: Scope, node: Any) -> Verdict | None:
    """A scalar commutes with the product.

    Before BMM1 it touches S×D values instead of S×S, keeps FP16 scores from overflowing, and lies where the
    fused attention of TensorRT 10 and 11 requires it ("Fused Attention" in TensorRT's documentation).
    TensorRT 8.6 has the scale after BMM1 in its own pattern: off unless requested.
    """
    found = with_factor(scope, node)
    product = None if found is None else scope.producer(found[0], "MatMul")
    if found is None or product is None or not _feeds_softmax(scope, node.outputs[0]):
        return None
    factor, (query, key) = found[1], product.inputs
    if scope.only_use(product.outputs[0]) is None:
        return "the unscaled scores are used elsewhere"
    if scope.is_constant(query) or scope.is_constant(key):
        return "one operand is constant: this is no attention"
    head = query.shape[-1] if query.shape else None
    if head not in HEAD_SIZES:
        return f"head size {head} is outside fused attention's conditions (16 to 256, a multiple of 8)"
    if scope.producer(query, "DequantizeLinear") is not None:
        return "the product is quantised: a scale between DQ and product would keep them apart"
    if not scope.is_float(query):
        return "the type of the scores is unknown"
    if not abs(factor) <= float(np.finfo(scope.dtype(query)).max):
        return "the scale is no number of the queries' type"
    if not scope.same_rank(product.outputs[0], node.outputs[0]):
        return "the scale adds an axis"

    def apply() -> None:
        scale = scope.constant(np.array(factor, scope.dtype(query)), f"{node.name}/scale")
        product.inputs[0] = scope.compute(product, "Mul", [query, scale], query)
        scope.bypass(node, product.outputs[0])

    return apply


def _feeds_softmax(scope: Scope, tensor: Any) -> bool:
    """Whether the scores go to a Softmax, plainly or through the mask's Add or Where."""
    plus = scope.only_use(tensor, "Add", "Where")
    return scope.only_use(plus.outputs[0] if plus is not None else tensor, "Softmax") is not None


# ── merge-matmuls ──────────────────────────────────────────────────────────────────────────────────────────


@rule(
    "MatMuls of one input with constant weights (Q, K and V) → one MatMul and a Split",
    "N",
    "one wide GEMM",
    targets=(),
    evidence=(
        layers("merges the products itself, no copies of weights"),
        faster("BERT-base in INT8, where it copies weights, -11.0% at 8", MERGED),
    ),
)
def merge_matmuls(scope: Scope) -> Iterator[Match]:
    """x·[W₁ W₂ W₃] = [x·W₁ x·W₂ x·W₃]: one wide product fills the GPU better than three narrow ones.

    The price is a Split that costs a copy where nothing fuses with it. Off unless requested: TensorRT often
    merges them itself, quantised ones at the price of copying their weights in every inference.
    """
    seen: set[int] = set()
    for node in scope.nodes("MatMul"):
        source, weight = node.inputs
        if id(source) in seen or scope.is_constant(source) or not scope.is_constant(weight):
            continue
        seen.add(id(source))
        group = [user for user in source.outputs if _multiplies(scope, user, source)]
        if len(group) > 1:
            yield Match(group[0], _why_not_merge(scope, group) or partial(_merge, scope, group))


def _why_not_merge(scope: Scope, group: list[Any]) -> str | None:
    weights = [node.inputs[1] for node in group]
    if any(scope.producer(node.outputs[0]) is None for node in group):
        return "one of them lies in another graph"
    if any(scope.value(weight) is None or len(weight.outputs) > 1 for weight in weights):
        return "a weight is shared, or of a type that NumPy lacks"
    if len({scope.dtype(weight) for weight in weights}) > 1:
        return "the weights differ in type"
    if scope.opset < 13:
        return "Split takes its sizes as an input from opset 13 on"
    if scope.rank(group[0].inputs[0]) is None:
        return "the rank of the input is unknown"
    return None


def _multiplies(scope: Scope, user: Any, source: Any) -> bool:
    is_product = scope.is_one_of(user, "MatMul") and user.inputs[0] is source
    return is_product and scope.is_constant(user.inputs[1]) and scope.rank(user.inputs[1]) == 2


def _merge(scope: Scope, group: list[Any]) -> None:
    first = group[0]
    values = [np.asarray(scope.value(node.inputs[1])) for node in group]
    weight = scope.constant(np.concatenate(values, axis=1), f"{first.name}/merged")
    wide = scope.compute(first, "MatMul", [first.inputs[0], weight], first.outputs[0])
    sizes = scope.constant(np.array([value.shape[1] for value in values], np.int64), f"{first.name}/sizes")
    outputs = [node.outputs[0] for node in group]
    split = scope.insert(first, "Split", [wide, sizes], [], {"axis": -1})
    for node in group:
        scope.kill(node)
    split.outputs.extend(outputs)


# ── what a parser alone needs ──────────────────────────────────────────────────────────────────────────────

_BOUNDS = {"Sign": (-1, 1), "Relu": (0,)}
_OPSET = 12
"""The oldest with a Clip of integers."""


@rule(
    "Sign, Relu and Pow of integers → Clip(−1, 1), Clip(0) and products, which TensorRT 8.6 imports",
    "B",
    "models with the sign of integers, such as DeBERTa",
    targets=targets_where(lambda target: not target.integer_functions),
    evidence=(builds("its parser takes them for floats alone", source=PARSER_8_6),),
)
@at("Pow", *_BOUNDS)
def plain_integers(scope: Scope, node: Any) -> Verdict | None:
    """Its parser takes them for floating-point numbers alone. DeBERTa has the sign of a distance."""
    number, dtype = node.inputs[0], scope.dtype(node.inputs[0])
    if dtype not in (np.int32, np.int64):
        return None
    power = scope.scalar(node.inputs[1]) if node.op == "Pow" else None
    if node.op == "Pow" and power not in (2, 3):
        return "the exponent is neither 2 nor 3"
    if node.op != "Pow" and scope.opset < _OPSET:
        return f"opset {scope.opset} has no Clip of integers"

    def apply() -> None:
        if node.op == "Pow":
            first = scope.compute(node, "Mul", [number, number], number) if power == 3 else number
            scope.replace(node, "Mul", [first, number])
        else:
            bounds = [scope.constant(np.array(one, dtype), f"{node.name}/bound") for one in _BOUNDS[node.op]]
            scope.replace(node, "Clip", [number, *bounds])

    return apply


@rule(
    "Conv(x, W) → Conv(x, W, kernel_shape), as 8.6 needs it, where W is computed and its shape is known",
    "B",
    "quantised convolutions",
    targets=targets_where(lambda target: not target.computed_kernels),
    evidence=(builds("builds only with it"),),
)
@at("Conv")
def tell_kernel(scope: Scope, node: Any) -> Verdict | None:
    """TensorRT 8.6 takes the size of a kernel that is no initializer from the attribute alone.

    ONNX lets a model leave it out, and 8.6 refuses the quantised convolutions of such a model, whose kernels
    come from DequantizeLinear.
    """
    if "kernel_shape" in node.attrs or scope.is_constant(node.inputs[1]):
        return None
    kernel = scope.static_shape(node.inputs[1])
    if kernel is None:
        return "the kernel's shape is unknown"
    attrs = {**node.attrs, "kernel_shape": list(kernel[2:])}
    return lambda: scope.replace(node, "Conv", node.inputs, attrs)
