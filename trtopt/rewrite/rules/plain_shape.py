"""Shape(x, start, end) → Slice(Shape(x), start, end), whose attributes TensorRT 8.6's parser ignores.

For TensorRT 8.6 alone: its parser passes over the two attributes that opset 15 gave the operator and takes
the whole shape, so that what follows has other sizes or does not import. PyTorch's exporter writes them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trtopt.rewrite.evidence import PARSER_8_6, builds
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Shape"):
        if node.attrs.get("start", 0) or "end" in node.attrs:
            yield Match(node)


def _check(scope: Scope, match: Match) -> str | None:
    if scope.target.shape_ends:
        return f"TensorRT {scope.target.name} reads the attributes"
    return None


def _apply(scope: Scope, match: Match) -> None:
    node = match.node
    whole = scope.compute(node, "Shape", [node.inputs[0]], node.outputs[0])
    ends = [node.attrs.get("start", 0), node.attrs.get("end", np.iinfo(np.int64).max)]
    slices = [
        scope.constant(np.array([end], np.int64), f"{node.name}/{name}")
        for end, name in zip(ends, ("start", "end"), strict=True)
    ]
    scope.replace(node, "Slice", [whole, *slices])


RULE = Rule(
    "plain-shape",
    "B",
    "the right sizes on 8.6",
    _find,
    _check,
    _apply,
    stage=Stage.CLEANING,
    evidence=(builds("its parser reads neither start nor end: wrong sizes", source=PARSER_8_6),),
)
