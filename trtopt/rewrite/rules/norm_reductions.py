"""ReduceSum(|x|) → ReduceL1, √ReduceSum(x²) → ReduceL2, log ReduceSum(eˣ) → ReduceLogSumExp.

One operator in place of two or three: TensorRT's parser expands it into the form that its reduction fusions
(ReduceL1, ReduceL2, ReduceLogSumExp) are written for. ReduceLogSumExp subtracts the maximum
in some runtimes, so it can only be more exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.match import is_private, square_of
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _inner(scope: Scope, total: Any, outer: Any | None) -> tuple[str, Any] | None:
    """The reduction that `outer(total(inner(x)))` is, and x."""
    source = total.inputs[0]
    square = square_of(scope, source)
    if outer is None:
        maker = scope.producer(source, "Abs")
        return ("ReduceL1", maker.inputs[0]) if maker is not None else None
    if outer.op == "Sqrt":
        return ("ReduceL2", square) if square is not None else None
    maker = scope.producer(source, "Exp")
    return ("ReduceLogSumExp", maker.inputs[0]) if maker is not None else None


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Sqrt", "Log", "ReduceSum"):
        total = node if node.op == "ReduceSum" else scope.producer(node.inputs[0], "ReduceSum")
        found = _inner(scope, total, None if total is node else node) if total is not None else None
        if total is not None and found is not None:
            inner = [total.inputs[0].inputs[0], *([] if total is node else [total])]
            yield Match(node, {"op": found[0], "source": found[1], "total": total, "inner": inner})


def _check(scope: Scope, match: Match) -> str | None:
    if not scope.is_float(match.parts["source"]):
        return "the type is not FP32 or FP16"
    total = match.parts["total"]
    given = [tensor for tensor in total.inputs[1:] if not tensor.is_empty()]
    if any(not scope.is_constant(tensor) for tensor in given):
        return "the axes are computed"
    if total.attrs.get("noop_with_empty_axes") and not scope.integers(total, "axes", 1):
        return "it sums over no axis"
    if not scope.same_rank(match.parts["source"], total.inputs[0]):
        return "a constant adds an axis"
    if not is_private(scope, match.parts["inner"], match.node):
        return "an intermediate result is used elsewhere"
    return None


def _apply(scope: Scope, match: Match) -> None:
    total, attrs = match.parts["total"], dict(match.parts["total"].attrs)
    rest = list(total.inputs[1:])
    if rest and scope.opset < 18:
        attrs["axes"] = scope.integers(total, "axes", 1) or []
        attrs.pop("noop_with_empty_axes", None)
        rest = []
        if not attrs["axes"]:
            del attrs["axes"]
    scope.replace(match.node, match.parts["op"], [match.parts["source"], *rest], attrs)


RULE = Rule(
    "norm-reductions",
    "N",
    "the reduction fusions",
    _find,
    _check,
    _apply,
    stage=Stage.REDUCTION,
    evidence=(layers("as many layers"),),
)
