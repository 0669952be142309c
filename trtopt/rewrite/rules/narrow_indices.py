"""Gather's indices as INT32: a cast from INT32 to INT64 is removed, and INT64 constants are narrowed.

Gather and GatherElements take both types and pick the same elements; a constant's range is known. TensorRT
8.6 has no INT64 and would convert them itself, with a warning each; on later versions only the cast goes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope

_INT32 = np.iinfo(np.int32)


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Gather", "GatherElements"):
        indices = node.inputs[1]
        cast = scope.producer(indices, "Cast")
        if cast is not None and cast.attrs["to"] == onnx.TensorProto.INT64:
            yield Match(node, {"cast": cast})
        elif not scope.target.int64 and scope.dtype(indices) == np.int64 and scope.is_constant(indices):
            yield Match(node, {"cast": None})


def _check(scope: Scope, match: Match) -> str | None:
    cast = match.parts["cast"]
    if cast is not None and scope.dtype(cast.inputs[0]) != np.int32:
        return "the cast does not come from INT32: its range is not proven"
    value = None if cast is not None else scope.value(match.node.inputs[1])
    if value is not None and value.size and (value.min() < _INT32.min or value.max() > _INT32.max):
        return "an index does not fit INT32"
    return None


def _apply(scope: Scope, match: Match) -> None:
    node, cast = match.node, match.parts["cast"]
    if cast is not None:
        scope.set_input(node, 1, cast.inputs[0])
    else:
        value = np.asarray(scope.value(node.inputs[1]), np.int32)
        node.inputs[1] = scope.constant(value, node.inputs[1].name)


RULE = Rule(
    "narrow-indices",
    "B",
    "no INT64 in front of a Gather",
    _find,
    _check,
    _apply,
    stage=Stage.CLEANING,
    after=("plain-shape",),
    evidence=(layers("does it itself"),),
)
