"""γ·(x − μ)/√(mean((x − μ)²) + ε) + β over the spatial axes, γ and β per channel → InstanceNormalization.

As `layer-norm`, over axes 2 and up of a tensor of rank 4 or 5. From 10 on TensorRT maps it to INormalization;
8.6 makes a plugin of it that calls cuDNN, so there the plain operators stay.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.match import why_not_one_node
from trtopt.rewrite.normalisation import affine_after, centred, channelwise, channelwise_inputs, quotient_at
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Div", "Mul"):
        found = quotient_at(scope, node)
        source = None if found is None else centred(scope, found)
        rank = None if source is None else scope.rank(source[0])
        if found is not None and source is not None and rank in (4, 5) and found.axes == list(range(2, rank)):
            affine = affine_after(scope, node, source[0], found.scale)
            inner = [*found.inner, *source[1], *affine.inner]
            yield Match(affine.last, {"found": found, "source": source[0], "affine": affine, "inner": inner})


def _check(scope: Scope, match: Match) -> str | None:
    if not scope.target.instance_norm:
        return f"TensorRT {scope.target.name} would make a plugin of it, which fuses with nothing"
    if not scope.is_float(match.parts["source"]):
        return "the type is not FP32 or FP16"
    if channelwise(scope, match.parts["affine"], match.parts["source"]) is None:
        return "the number of channels is dynamic, or scale or shift vary along another axis"
    return why_not_one_node(scope, match.parts["source"], match.node, match.parts["inner"])


def _apply(scope: Scope, match: Match) -> None:
    inputs = channelwise_inputs(scope, match.parts["affine"], match.parts["source"], match.node.name)
    scope.replace(match.node, "InstanceNormalization", inputs, {"epsilon": match.parts["found"].epsilon})


RULE = Rule(
    "instance-norm",
    "N",
    "INormalization, moments in FP32",
    _find,
    _check,
    _apply,
    stage=Stage.NORMALISATION,
    evidence=(layers("not for 8.6 without cuDNN"),),
)
