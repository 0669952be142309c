"""The axes of Reduce operators, which moved from an attribute to an input at opset 18 (13 for ReduceSum)."""

from __future__ import annotations

from typing import Any

import numpy as np

from trtopt.rewrite.scope import Scope

REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip


def axes_of(scope: Scope, node: Any) -> list[int] | None:
    """The axes that the node reduces, counted from the front and sorted; None if they are unknown."""
    rank = scope.rank(node.inputs[0])
    given = scope.integers(node, "axes", 1)
    if rank is None:
        return None
    if given is None:
        computed = len(node.inputs) > 1 and not node.inputs[1].is_empty()
        return None if computed or node.attrs.get("noop_with_empty_axes") else list(range(rank))
    if not given:
        return [] if node.attrs.get("noop_with_empty_axes") else list(range(rank))
    return sorted(axis % rank for axis in given)


def keeps_axes(node: Any) -> bool:
    """Whether reduced axes stay, with length 1."""
    return bool(node.attrs.get("keepdims", 1))


def operands(
    scope: Scope, op: str, source: Any, axes: list[int], keep: bool, like: str
) -> tuple[list[Any], dict[str, Any]]:
    """Inputs and attributes of a Reduce operator over `axes`, in the form of the model's opset."""
    attrs: dict[str, Any] = {"keepdims": int(keep)}
    if scope.opset >= (13 if op == "ReduceSum" else 18):
        return [source, scope.constant(np.array(axes, np.int64), f"{like}/axes")], attrs
    return [source], {"axes": axes, **attrs}
