"""Shape(x) whose axes are known → a constant; Gather or Slice of known axes out of a Shape likewise.

Honours Shape's `start` and `end` (opset 15). Axes that stay dynamic stay computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trtopt.rewrite.rule import Match, Rule
from trtopt.rewrite.scope import Scope


def _axes(node: Any) -> list[Any] | None:
    """The axes that a Shape node tells."""
    shape = node.inputs[0].shape
    return None if shape is None else list(shape)[node.attrs.get("start", 0) : node.attrs.get("end", None)]


def _picked(scope: Scope, node: Any, axes: list[Any]) -> Any:
    """What `node` takes out of the axes; None if that cannot be told."""
    places = np.arange(len(axes))
    if node.op == "Shape":
        return places
    if node.op == "Gather":
        index = scope.value(node.inputs[1])
        fits = index is not None and bool(np.all((index >= -len(axes)) & (index < len(axes))))
        return places[index.astype(np.int64)] if fits and index is not None else None
    start, end, axis, step = (_single(scope, node, position) for position in (1, 2, 3, 4))
    if start is None or end is None or axis not in (0, -1, None) or step == 0:
        return None
    return places[start : min(end, len(axes)) if end >= 0 else end : step]


def _single(scope: Scope, node: Any, position: int) -> int | None:
    value = scope.integers(node, ("", "starts", "ends", "axes", "steps")[position], position)
    return value[0] if value and len(value) == 1 else None


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Shape", "Gather", "Slice"):
        source = node if node.op == "Shape" else scope.producer(node.inputs[0], "Shape")
        if source is None or scope.is_fixed(node.outputs[0]) or (axes := _axes(source)) is None:
            continue
        places = _picked(scope, node, axes)
        if places is not None and all(isinstance(axes[place], int) for place in np.ravel(places)):
            yield Match(node, {"value": np.asarray(np.array(axes, dtype=object)[places], np.int64)})


def _check(scope: Scope, match: Match) -> str | None:
    given = [tensor for tensor in match.node.inputs[1:] if not tensor.is_empty()]
    if not all(scope.is_constant(tensor) for tensor in given):
        return "an index is computed"
    return None


def _apply(scope: Scope, match: Match) -> None:
    out = match.node.outputs[0]
    scope.bypass(match.node, scope.constant(np.asarray(match.parts["value"], np.int64), out.name))


RULE = Rule("fold-shapes", "B", "no shape layers", _find, _check, _apply)
