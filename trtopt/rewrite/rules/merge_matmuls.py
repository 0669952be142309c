"""MatMuls of one input with constant weights (Q, K and V) → one MatMul and a Split.

x·[W₁ W₂ W₃] = [x·W₁ x·W₂ x·W₃]: one wide product fills the GPU better than three narrow ones, at the price of
a Split that costs a copy where nothing fuses with it. Off unless requested:
TensorRT often merges them itself, quantised ones at the price of copying their weights in every inference.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trtopt.rewrite.evidence import MERGED, faster, layers
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    seen: set[int] = set()
    for node in scope.nodes("MatMul"):
        source, weight = node.inputs
        if id(source) in seen or scope.is_constant(source) or not scope.is_constant(weight):
            continue
        seen.add(id(source))
        group = [
            user for user in source.outputs if scope.is_one_of(user, "MatMul") and user.inputs[0] is source
        ]
        group = [
            user for user in group if scope.is_constant(user.inputs[1]) and scope.rank(user.inputs[1]) == 2
        ]
        if len(group) > 1:
            yield Match(group[0], {"group": group})


def _check(scope: Scope, match: Match) -> str | None:
    group = match.parts["group"]
    weights = [node.inputs[1] for node in group]
    if any(scope.producer(node.outputs[0]) is None for node in group):
        return "one of them lies in another graph"
    if any(scope.value(weight) is None or len(weight.outputs) > 1 for weight in weights):
        return "a weight is shared, or of a type that NumPy lacks"
    if len({scope.dtype(weight) for weight in weights}) > 1:
        return "the weights differ in type"
    if scope.opset < 13:
        return "Split takes its sizes as an input from opset 13 on"
    if scope.rank(group[0].inputs[0]) is None:
        return "the rank of the input is unknown"
    return None


def _apply(scope: Scope, match: Match) -> None:
    group = match.parts["group"]
    first = group[0]
    values = [np.asarray(scope.value(node.inputs[1])) for node in group]
    weight = scope.constant(np.concatenate(values, axis=1), f"{first.name}/merged")
    wide = scope.compute(first, "MatMul", [first.inputs[0], weight], first.outputs[0])
    sizes = scope.constant(np.array([value.shape[1] for value in values], np.int64), f"{first.name}/sizes")
    outputs = [node.outputs[0] for node in group]
    split = scope.insert(first, "Split", [wide, sizes], [], {"axis": -1})
    for node in group:
        scope.kill(node)
    split.outputs.extend(outputs)


RULE = Rule(
    "merge-matmuls",
    "N",
    "one wide GEMM",
    _find,
    _check,
    _apply,
    stage=Stage.MERGING,
    targets=(),
    evidence=(
        layers("merges the products itself, no copies of weights"),
        faster("BERT-base in INT8, where it copies weights, -11.0% at 8", MERGED),
    ),
)
