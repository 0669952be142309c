"""Convolutions of one input with the same geometry → one with more channels, and a Split.

Each output channel is a filter of its own, so filters of equal size, stride, dilation and padding can be
stacked. Helps where parallel 1×1 branches are each too small for the GPU. Off unless requested: measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _geometry(node: Any) -> Any:
    attrs = {key: value for key, value in node.attrs.items() if key != "kernel_shape"}
    return repr(sorted(attrs.items())), tuple(node.inputs[1].shape[1:]), len(node.inputs)


def _find(scope: Scope) -> Iterator[Match]:
    seen: set[Any] = set()
    for node in scope.nodes("Conv"):
        if not scope.is_constant(node.inputs[1]) or node.attrs.get("group", 1) != 1:
            continue
        key = (id(node.inputs[0]), _geometry(node))
        if key in seen:
            continue
        seen.add(key)
        users = [
            user
            for user in node.inputs[0].outputs
            if scope.is_one_of(user, "Conv") and user.inputs[0] is node.inputs[0]
        ]
        group = [user for user in users if scope.is_constant(user.inputs[1]) and _geometry(user) == key[1]]
        if len(group) > 1:
            yield Match(group[0], {"group": group})


def _check(scope: Scope, match: Match) -> str | None:
    group = match.parts["group"]
    if any(scope.producer(node.outputs[0]) is None for node in group):
        return "one of them lies in another graph"
    constants = [tensor for node in group for tensor in node.inputs[1:]]
    if any(scope.value(tensor) is None for tensor in constants):
        return "a weight or bias is computed, or of a type that NumPy lacks"
    if any(len(node.inputs[1].outputs) > 1 for node in group):
        return "a weight is shared with another node"
    if scope.opset < 13:
        return "Split takes its sizes as an input from opset 13 on"
    return None


def _apply(scope: Scope, match: Match) -> None:
    group = match.parts["group"]
    first = group[0]
    stacked = [
        np.concatenate([np.asarray(scope.value(node.inputs[place])) for node in group])
        for place in range(1, len(first.inputs))
    ]
    constants = [scope.constant(value, f"{first.name}/merged") for value in stacked]
    wide = scope.compute(first, "Conv", [first.inputs[0], *constants], first.outputs[0], **first.attrs)
    sizes = [int(node.inputs[1].shape[0]) for node in group]
    parts = scope.constant(np.array(sizes, np.int64), f"{first.name}/sizes")
    outputs = [node.outputs[0] for node in group]
    split = scope.insert(first, "Split", [wide, parts], [], {"axis": 1})
    for node in group:
        scope.kill(node)
    split.outputs.extend(outputs)


RULE = Rule(
    "merge-convs",
    "N",
    "horizontal fusion",
    _find,
    _check,
    _apply,
    stage=Stage.MERGING,
    after=("merge-matmuls",),
    default=(),
    evidence=(layers("one convolution instead of two, one activation more"),),
)
