"""What a parser alone needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trtopt.rewrite.evidence import PARSER_8_6, builds
from trtopt.rewrite.rule import Match, Rule
from trtopt.rewrite.scope import Scope
from trtopt.targets import targets_where

# ── plain-integers ─────────────────────────────────────────────────────────────────────────────────────────

_BOUNDS = {"Sign": (-1, 1), "Relu": (0,)}
_OPSET = 12
"""The oldest with a Clip of integers."""


def _find_plain_integers(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Pow", *_BOUNDS):
        if scope.dtype(node.inputs[0]) in (np.int32, np.int64):
            yield Match(node)


def _check_plain_integers(scope: Scope, match: Match) -> str | None:
    if match.node.op == "Pow":
        return None if scope.scalar(match.node.inputs[1]) in (2, 3) else "the exponent is neither 2 nor 3"
    return None if scope.opset >= _OPSET else f"opset {scope.opset} has no Clip of integers"


def _apply_plain_integers(scope: Scope, match: Match) -> None:
    node, number = match.node, match.node.inputs[0]
    if node.op == "Pow":
        is_cube = scope.scalar(node.inputs[1]) == 3
        first = scope.compute(node, "Mul", [number, number], number) if is_cube else number
        scope.replace(node, "Mul", [first, number])
    else:
        dtype = scope.dtype(number)
        bounds = [scope.constant(np.array(one, dtype), f"{node.name}/bound") for one in _BOUNDS[node.op]]
        scope.replace(node, "Clip", [number, *bounds])


PLAIN_INTEGERS = Rule(
    "plain-integers",
    "Sign, Relu and Pow of integers → Clip(−1, 1), Clip(0) and products, which TensorRT 8.6 imports",
    "B",
    "models with the sign of integers, such as DeBERTa",
    _find_plain_integers,
    _check_plain_integers,
    _apply_plain_integers,
    targets=targets_where(lambda target: not target.integer_functions),
    evidence=(builds("its parser takes them for floats alone", source=PARSER_8_6),),
)
"""Its parser takes these operators for floating-point numbers alone. DeBERTa has the sign of a distance."""


# ── tell-kernel ────────────────────────────────────────────────────────────────────────────────────────────


def _find_tell_kernel(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Conv"):
        if "kernel_shape" not in node.attrs and not scope.is_constant(node.inputs[1]):
            yield Match(node)


def _check_tell_kernel(scope: Scope, match: Match) -> str | None:
    if scope.static_shape(match.node.inputs[1]) is None:
        return "the kernel's shape is unknown"
    return None


def _apply_tell_kernel(scope: Scope, match: Match) -> None:
    kernel = scope.static_shape(match.node.inputs[1])
    assert kernel is not None
    scope.replace(
        match.node, "Conv", match.node.inputs, {**match.node.attrs, "kernel_shape": list(kernel[2:])}
    )


TELL_KERNEL = Rule(
    "tell-kernel",
    "Conv(x, W) → Conv(x, W, kernel_shape), as 8.6 needs it, where W is computed and its shape is known",
    "B",
    "quantised convolutions",
    _find_tell_kernel,
    _check_tell_kernel,
    _apply_tell_kernel,
    targets=targets_where(lambda target: not target.computed_kernels),
    evidence=(builds("builds only with it"),),
)
"""TensorRT 8.6 takes the size of a kernel that is no initializer from the attribute alone, which ONNX lets a
model leave out: it refuses the quantised convolutions of such a model, whose kernels come from
DequantizeLinear."""
