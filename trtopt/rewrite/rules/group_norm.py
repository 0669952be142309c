"""Reshape(x, [0, G, −1]) → InstanceNormalization(1, 0) → Reshape back → ·γ + β → GroupNormalization(x, γ, β).

This is how PyTorch exports GroupNorm below opset 21. With unit scale and no shift, normalising each of G runs
of channels is group normalisation; γ and β are per channel. TensorRT 10 and later map it to INormalization.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.match import is_private
from trtopt.rewrite.normalisation import affine_after, channelwise, channelwise_inputs
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope

_OPSET = 21


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("InstanceNormalization"):
        into, back = scope.producer(node.inputs[0], "Reshape"), scope.only_use(node.outputs[0], "Reshape")
        if into is not None and back is not None:
            affine = affine_after(scope, back, into.inputs[0])
            inner = [into, node, *affine.inner]
            yield Match(
                affine.last, {"norm": node, "into": into, "back": back, "affine": affine, "inner": inner}
            )


def _check(scope: Scope, match: Match) -> str | None:
    into, norm, back = match.parts["into"], match.parts["norm"], match.parts["back"]
    source = into.inputs[0]
    if scope.target.operator_opset < _OPSET:
        return f"TensorRT {scope.target.name} does not read GroupNormalization of opset {_OPSET}"
    if scope.opset < _OPSET:
        return f"GroupNormalization per channel needs opset {_OPSET}, the model has {scope.opset}"
    scale, shift = (scope.value(tensor) for tensor in norm.inputs[1:3])
    if scale is None or shift is None or (scale != 1).any() or shift.any():
        return "the groups have a scale or shift of their own"
    if channelwise(scope, match.parts["affine"], source) is None:
        return "the channels are dynamic, or scale or shift vary along another axis"
    if scope.rank(into.outputs[0]) != 3 or source.shape[1] % scale.size:
        return "the first Reshape does not part the channels into groups"
    given = scope.value(into.inputs[1])
    if given is None or list(given) not in ([0, scale.size, -1], [source.shape[0], scale.size, -1]):
        return "the first Reshape is not [0, groups, -1]"
    computed = scope.producer(back.inputs[1], "Shape")
    same = computed is not None and computed.inputs[0] is source and not computed.attrs
    if not same and not scope.same_shape(source, back.outputs[0]):
        return "the second Reshape may not restore the shape"
    if not is_private(scope, match.parts["inner"], match.node):
        return "an intermediate result is used elsewhere"
    return None


def _apply(scope: Scope, match: Match) -> None:
    source, norm, affine = match.parts["into"].inputs[0], match.parts["norm"], match.parts["affine"]
    attrs = {"num_groups": int(norm.inputs[1].shape[0]), "epsilon": float(norm.attrs.get("epsilon", 1e-5))}
    inputs = channelwise_inputs(scope, affine, source, match.node.name)
    scope.replace(match.node, "GroupNormalization", inputs, attrs)


RULE = Rule(
    "group-norm",
    "N",
    "INormalization, moments in FP32",
    _find,
    _check,
    _apply,
    stage=Stage.NORMALISATION,
    evidence=(layers("does not read it"),),
)
