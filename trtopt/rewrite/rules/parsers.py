"""What a parser alone needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from trtopt.rewrite.rule import PARSER_8_6, Verdict, at, builds, rule
from trtopt.rewrite.scope import Scope
from trtopt.targets import targets_where

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
