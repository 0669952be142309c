"""γ·(x − μ)/√(mean((x − μ)²) + ε) + β over the last axes → LayerNormalization(x, γ, β), casts included.

μ is the mean over the same axes. Any spelling of the square (Mul, Pow), of the root (Sqrt, Pow ½) and of the
division (Div, Mul by Reciprocal) matches; γ may come before the division or after it; γ and β may be missing.
Where FP16 or BF16 is cast to FP32 in front of it all, and back in front of γ, the casts go too: the operator
has them by definition. TensorRT maps it to INormalization: one kernel, with moments in FP32 in FP16 networks.

An instance's or a group's normalisation stays written out: over several axes along which nothing scales, or
over more values than a transformer's. As LayerNormalization unet3d's 22 took TensorRT 8.6 23 % more time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.match import why_not_one_node
from trtopt.rewrite.normalisation import affine_after, affine_in_half, centred, quotient_at, spread, spreads
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope

LONGEST = 16_384
"""Values that are normalised together: the hidden size of the largest transformers."""


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Div", "Mul"):
        found = quotient_at(scope, node)
        source = None if found is None else centred(scope, found)
        rank = None if source is None else scope.rank(source[0])
        if found is None or source is None or rank is None:
            continue
        if found.axes == list(range(rank - len(found.axes), rank)):
            half = affine_in_half(scope, found, source[0])
            affine = half or affine_after(scope, node, source[0], found.scale)
            inner = [*found.inner, *source[1], *affine.inner]
            yield Match(affine.last, {"found": found, "affine": affine, "inner": inner})


def _normalised(match: Match) -> tuple[int, ...] | None:
    """The lengths of the normalised axes; None if one of them is not known."""
    found = match.parts["found"]
    axes = tuple((found.numerator.shape or ())[-len(found.axes) :])
    known = len(axes) == len(found.axes) and all(isinstance(axis, int) for axis in axes)
    return axes if known else None


def is_better_plain(match: Match) -> bool:
    """Whether it is an instance's or a group's, which TensorRT computes faster by the plain operators."""
    shape, affine = _normalised(match), match.parts["affine"]
    bare = affine.scale is None and affine.shift is None
    return shape is not None and (math.prod(shape) > LONGEST or (bare and len(shape) > 1))


def _check(scope: Scope, match: Match) -> str | None:
    if scope.opset < 17:
        return f"LayerNormalization needs opset 17, the model has {scope.opset}: export it at 17"
    shape = _normalised(match)
    if shape is None:
        return "a normalised axis is dynamic, or not known"
    if is_better_plain(match):
        return "an instance's or a group's normalisation, which is faster written out"
    if not scope.is_float(match.parts["found"].numerator):
        return "the type is not FP32 or FP16"
    affine = match.parts["affine"]
    if not (spreads(scope, affine.scale, shape) and spreads(scope, affine.shift, shape)):
        return "scale or shift vary along another axis"
    return why_not_one_node(scope, affine.source, match.node, match.parts["inner"])


def _apply(scope: Scope, match: Match) -> None:
    affine, shape, name = match.parts["affine"], _normalised(match) or (), match.node.name
    inputs = [affine.source, spread(scope, affine.scale, shape, affine.source, f"{name}/scale")]
    if affine.shift is not None:
        inputs.append(spread(scope, affine.shift, shape, affine.source, f"{name}/bias"))
    attrs = {"axis": -len(shape), "epsilon": match.parts["found"].epsilon}
    scope.replace(match.node, "LayerNormalization", inputs, attrs)


RULE = Rule(
    "layer-norm",
    "N",
    "INormalization, moments in FP32",
    _find,
    _check,
    _apply,
    stage=Stage.NORMALISATION,
    after=("plain-instance-norm",),
    evidence=(layers("one kernel instead of six layers by reciprocal; else it does it itself"),),
)
