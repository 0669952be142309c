"""Conv(x, W) → Conv(x, W, kernel_shape), as 8.6 needs it, where W is computed and its shape is known.

TensorRT 8.6 takes the size of a kernel that is no initializer from the attribute alone, which ONNX lets a
model leave out: it refuses the quantised convolutions of such a model, whose kernels come from
DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.rewrite.evidence import builds
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope
from trtopt.targets import targets_where


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Conv"):
        if "kernel_shape" not in node.attrs and not scope.is_constant(node.inputs[1]):
            yield Match(node)


def _check(scope: Scope, match: Match) -> str | None:
    if scope.static_shape(match.node.inputs[1]) is None:
        return "the kernel's shape is unknown"
    return None


def _apply(scope: Scope, match: Match) -> None:
    kernel = scope.static_shape(match.node.inputs[1])
    assert kernel is not None
    scope.replace(
        match.node, "Conv", match.node.inputs, {**match.node.attrs, "kernel_shape": list(kernel[2:])}
    )


RULE = Rule(
    "tell-kernel",
    "B",
    "quantised convolutions",
    _find,
    _check,
    _apply,
    stage=Stage.PLUGINS,
    targets=targets_where(lambda target: not target.computed_kernels),
    evidence=(builds("builds only with it"),),
)
