"""Checks on shapes: alignment, axes, sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtopt.rewrite.lint.advice import Check, Finding
from trtopt.rewrite.match import REDUCTIONS, axes_of
from trtopt.rewrite.scope import Scope

_LARGE_K = 3840
_BATCH_LIMIT = 1 << 16


def _wanted(scope: Scope, node: Any) -> int:
    """How many values a Tensor Core takes at a time: 32 behind a DequantizeLinear, else 8."""
    return 32 if any(scope.producer(tensor, "DequantizeLinear") for tensor in node.inputs[:2]) else 8


def _weight(scope: Scope, node: Any) -> Any | None:
    """The weight of the node, also behind Q and DQ."""
    tensor = node.inputs[1]
    for op in ("DequantizeLinear", "QuantizeLinear"):
        maker = scope.producer(tensor, op)
        tensor = maker.inputs[0] if maker is not None else tensor
    return tensor if scope.is_constant(tensor) else None


def _odd_channels(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("Conv"):
        weight, unit = _weight(scope, node), _wanted(scope, node)
        if weight is None or node.attrs.get("group", 1) != 1:
            continue
        first = scope.producer(node.inputs[0]) is None
        sizes = {"output channels": weight.shape[0], **({} if first else {"input channels": weight.shape[1]})}
        for kind, size in sizes.items():
            if size % unit:
                yield Finding(node, f"{size} {kind} are not a multiple of {unit}")


def _odd_products(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("MatMul", "Gemm"):
        weight, unit = _weight(scope, node), _wanted(scope, node)
        if weight is None or len(weight.shape) < 2:
            continue
        k, n = weight.shape[-2:][::-1] if node.attrs.get("transB", 0) else weight.shape[-2:]
        for kind, size in (("K", k), ("N", n)):
            if size > 1 and size % unit:
                yield Finding(node, f"{kind} = {size} is not a multiple of {unit}")


def _vector_products(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("MatMul", "Gemm"):
        left, weight = node.inputs[0].shape, _weight(scope, node)
        if node.op == "Gemm" and node.attrs.get("transA", 0):
            continue
        rows = left[-2] if left is not None and len(left) >= 2 else None
        columns = None
        if weight is not None and len(weight.shape) >= 2:
            columns = weight.shape[-2] if node.attrs.get("transB", 0) else weight.shape[-1]
        if rows == 1 or columns == 1:
            yield Finding(node, f"{'M' if rows == 1 else 'N'} = 1: a matrix times a vector")


def _batch_concats(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("Concat"):
        rank = scope.rank(node.outputs[0])
        if len(node.inputs) > 1 and rank is not None and rank > 1 and node.attrs["axis"] % rank == 0:
            yield Finding(node, f"it joins {len(node.inputs)} tensors along axis 0")


def _inner_gathers(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("Gather"):
        axis = node.attrs.get("axis", 0) % (scope.rank(node.inputs[0]) or 1)
        if axis and not scope.is_constant(node.inputs[0]) and not scope.producer(node.inputs[0], "Shape"):
            yield Finding(node, f"it gathers along axis {axis} of a computed tensor")


def _leading_reductions(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes(*REDUCTIONS):
        axes, rank = axes_of(scope, node), scope.rank(node.inputs[0])
        if axes and rank is not None and axes != list(range(rank - len(axes), rank)):
            yield Finding(node, f"it reduces axes {axes} of {rank}, which are not the last")


def _hard_selections(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("TopK"):
        count = scope.scalar(node.inputs[1]) if len(node.inputs) > 1 else node.attrs.get("k")
        if count is None:
            yield Finding(node, "K is computed")
        elif count > _LARGE_K:
            yield Finding(node, f"K = {count:.0f} exceeds {_LARGE_K}")


def _huge_batches(scope: Scope) -> Iterator[Finding]:
    for tensor in scope.graph.inputs:
        if tensor.shape and isinstance(tensor.shape[0], int) and tensor.shape[0] > _BATCH_LIMIT:
            yield Finding(None, f"input {tensor.name!r} has batch {tensor.shape[0]}")


SHAPE_CHECKS = (
    Check(
        "odd-channels",
        "Tensor Core kernels need padding, or are not used at all",
        "widen the layer, or try `trtopt rewrite --rules pad-channels`",
        _odd_channels,
    ),
    Check(
        "odd-product",
        "Tensor Core kernels need padding, or are not used at all",
        "pad the vocabulary, classes or hidden size in the model",
        _odd_products,
    ),
    Check(
        "vector-product",
        "bound by memory, not by arithmetic: INT8 or FP8 compute gains nothing",
        "raise the batch, or quantise the weight alone",
        _vector_products,
    ),
    Check(
        "batch-concat", "a copy, and no fusion across it", "join along channels in the model", _batch_concats
    ),
    Check(
        "inner-gather",
        "a strided Gather, slower than one along axis 0",
        "gather along axis 0, or use Slice or Split where the indices are a run",
        _inner_gathers,
    ),
    Check(
        "leading-reduction",
        "slower than a reduction of the last axes; may need a transpose",
        "lay the reduced axes last in the model",
        _leading_reductions,
    ),
    Check("topk", "a slow sort, or a build that fails", "lower K, or select in two steps", _hard_selections),
    Check("huge-batch", "beyond 2^16 many kernels do not exist", "split the batch", _huge_batches),
)
