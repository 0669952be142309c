"""(x − μ)/√(mean((x − μ)²) + ε)·γ + β over the last axes → LayerNormalization(x, γ, β).

μ is the mean over the same axes. Any spelling of the square (Mul, Pow), of the root (Sqrt, Pow ½) and of the
division (Div, Mul by Reciprocal) matches; γ and β may be missing. TensorRT maps the operator to
INormalization: one kernel, with the moments in FP32 also in an FP16 network.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trtopt.rewrite.match import why_not_one_node
from trtopt.rewrite.normalisation import affine_after, centred, quotient_at
from trtopt.rewrite.rule import Match, Rule
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Div", "Mul"):
        found = quotient_at(scope, node)
        source = None if found is None else centred(scope, found)
        rank = None if source is None else scope.rank(source[0])
        if found is None or source is None or rank is None:
            continue
        if found.axes == list(range(rank - len(found.axes), rank)):
            affine = affine_after(scope, node)
            inner = [*found.inner, *source[1], *affine.inner]
            yield Match(affine.last, {"found": found, "source": source[0], "affine": affine, "inner": inner})


def _normalised(scope: Scope, match: Match) -> tuple[int, ...] | None:
    axes = match.parts["source"].shape[-len(match.parts["found"].axes) :]
    return tuple(axes) if all(isinstance(axis, int) for axis in axes) else None


def _fits(scope: Scope, constant: Any | None, shape: tuple[int, ...]) -> bool:
    """Whether a constant spreads over the normalised axes alone."""
    if constant is None:
        return True
    own = tuple(constant.shape)
    return (
        own[max(0, len(own) - len(shape)) :] == shape[max(0, len(shape) - len(own)) :]
        and all(axis == 1 for axis in own[: max(0, len(own) - len(shape))])
    ) or int(np.prod(own)) == 1


def _check(scope: Scope, match: Match) -> str | None:
    if scope.opset < 17:
        return f"LayerNormalization needs opset 17, the model has {scope.opset}: export it at 17"
    shape = _normalised(scope, match)
    if shape is None:
        return "a normalised axis is dynamic"
    if not scope.is_float(match.parts["source"]):
        return "the type is not floating-point"
    affine = match.parts["affine"]
    if not (_fits(scope, affine.scale, shape) and _fits(scope, affine.shift, shape)):
        return "scale or shift vary along another axis"
    return why_not_one_node(scope, match.parts["source"], match.node, match.parts["inner"])


def _apply(scope: Scope, match: Match) -> None:
    shape, affine, source = _normalised(scope, match) or (), match.parts["affine"], match.parts["source"]
    dtype = scope.dtype(source)

    def spread(constant: Any | None, fill: float, like: str) -> Any:
        value = None if constant is None else scope.value(constant)
        if value is not None and value.shape == shape:
            return constant
        if value is None:
            return scope.constant(np.full(shape, fill, dtype), like)
        flat = value.reshape(value.shape[max(0, value.ndim - len(shape)) :])
        return scope.constant(np.broadcast_to(flat, shape).astype(dtype), like)

    name = match.node.name
    inputs = [source, spread(affine.scale, 1.0, f"{name}/scale")]
    if affine.shift is not None:
        inputs.append(spread(affine.shift, 0.0, f"{name}/bias"))
    attrs = {"axis": -len(shape), "epsilon": match.parts["found"].epsilon}
    scope.replace(match.node, "LayerNormalization", inputs, attrs)


RULE = Rule(
    "layer-norm",
    "N",
    "INormalization, moments in FP32",
    _find,
    _check,
    _apply,
    audit="8.6: one kernel instead of six layers by reciprocal; else it does it itself",
)
