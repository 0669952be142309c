"""Conv(Pad(x)) → Conv with larger pads; also AveragePool with count_include_pad, MaxPool after −∞.

A convolution reads zeros beyond its input's edge, so zeros padded on the spatial axes are its own padding:
pads' = pads + Pad's. Enables TensorRT's Padding + Convolution in one kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trtopt.rewrite.evidence import layers, quantises
from trtopt.rewrite.match import behind
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _pads(scope: Scope, pad: Any) -> list[int] | None:
    """Padding of every axis, begins then ends, the `axes` input resolved."""
    rank, given = scope.rank(pad.inputs[0]), scope.integers(pad, "pads", 1)
    if rank is None or given is None:
        return None
    if len(pad.inputs) < 4 or pad.inputs[3].is_empty():
        return given
    axes = scope.integers(pad, "", 3)
    if axes is None:
        return None
    full = [0] * (2 * rank)
    for place, axis in enumerate(axes):
        full[axis % rank], full[rank + axis % rank] = given[place], given[len(axes) + place]
    return full


def _check(scope: Scope, match: Match) -> str | None:
    node, pad = match.node, match.parts["first"]
    pads, mode = _pads(scope, pad), pad.attrs.get("mode", "constant")
    if mode != "constant":
        return f"the padding mode is {mode}"
    if pads is None:
        return "the amount of padding is computed"
    half = len(pads) // 2
    if any(pads[:2]) or any(pads[half : half + 2]):
        return "batch or channels are padded"
    if min(pads) < 0:
        return "it cuts instead of padding"
    given = len(pad.inputs) > 2 and not pad.inputs[2].is_empty()
    value = scope.scalar(pad.inputs[2]) if given else float(pad.attrs.get("value", 0.0))
    wanted = -np.inf if node.op == "MaxPool" else 0.0
    if value != wanted:
        return f"it pads with {'a computed value' if value is None else value}, not {wanted}"
    if node.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return "auto_pad depends on the input's size"
    own = list(node.attrs.get("pads", [0] * (2 * half - 4)))
    if node.op == "AveragePool" and (not node.attrs.get("count_include_pad") or node.attrs.get("ceil_mode")):
        return "padded places do not count in the average"
    if node.op == "MaxPool" and len(node.outputs) > 1:
        return "the indices would change"
    if node.attrs.get("ceil_mode"):
        return "its last window may begin in the padding"
    kernel = node.attrs.get("kernel_shape")
    if node.op != "Conv" and any(
        have + more >= size
        for have, more, size in zip(own, [*pads[2:half], *pads[half + 2 :]], [*kernel, *kernel], strict=True)
    ):
        return "a pool's padding must be smaller than its window"
    if scope.only_use(pad.outputs[0]) is None:
        return "the padded tensor is used elsewhere"
    return None


def _apply(scope: Scope, match: Match) -> None:
    node, pad = match.node, match.parts["first"]
    pads = _pads(scope, pad) or []
    half = len(pads) // 2
    more = [*pads[2:half], *pads[half + 2 :]]
    own = node.attrs.get("pads", [0] * len(more))
    node.attrs["pads"] = [have + extra for have, extra in zip(own, more, strict=True)]
    node.attrs.pop("auto_pad", None)
    scope.set_input(node, 0, pad.inputs[0])


RULE = Rule(
    "pad-into-conv",
    "B",
    "Padding+Convolution",
    behind(("Conv", "AveragePool", "MaxPool"), "Pad"),
    _check,
    _apply,
    stage=Stage.CONVOLUTION,
    evidence=(
        layers("no Padding in front of a pool; in front of a convolution it does it itself"),
        quantises("no Q/DQ between a Pad and its convolution"),
    ),
)
