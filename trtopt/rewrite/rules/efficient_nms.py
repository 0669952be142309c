"""NonMaxSuppression → the plugin EfficientNMS_ONNX_TRT, which has the same inputs, attributes and output.

The plugin sorts and suppresses in one kernel and pads its output to a fixed number of rows, where ONNX's
operator gives as many as there are: consumers must bear that, hence A and off unless requested. From TensorRT
8.6 on, the parser maps NonMaxSuppression to INMS, a layer of its own: use this rule only for older plugins'
pipelines. ONNX Runtime has no such plugin, so the result cannot be checked: add --no-check.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope

_DOMAIN = "trt.plugins"


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("NonMaxSuppression"):
        yield Match(node)


def _check(scope: Scope, match: Match) -> str | None:
    given = [tensor for tensor in match.node.inputs[2:] if not tensor.is_empty()]
    if any(scope.scalar(tensor) is None for tensor in given):
        return "a threshold is computed"
    if not scope.target.efficient_nms:
        return f"TensorRT {scope.target.name} has no such plugin: INMS does the work"
    return None


def _apply(scope: Scope, match: Match) -> None:
    node = match.node
    values = [0.0 if tensor.is_empty() else scope.scalar(tensor) or 0.0 for tensor in node.inputs[2:]]
    most, overlap, score = (*values, 0.0, 0.0, 0.0)[:3]
    attrs = {
        "max_output_boxes_per_class": int(most),
        "iou_threshold": float(overlap),
        "score_threshold": float(score),
        "center_point_box": int(node.attrs.get("center_point_box", 0)),
    }
    new = scope.replace(node, "EfficientNMS_ONNX_TRT", list(node.inputs[:2]), attrs)
    new.domain = _DOMAIN


RULE = Rule(
    "efficient-nms",
    "A",
    "one kernel",
    _find,
    _check,
    _apply,
    stage=Stage.PLUGINS,
    after=("tell-kernel",),
    targets=(),
)
