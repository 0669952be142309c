"""Reshape(Reshape(x, s), t) → Reshape(x, t); also Squeeze, Unsqueeze, Flatten and some Transposes.

A chain of these keeps the order of the elements, so only the last shape matters; a Transpose keeps it if it
moves no axis but those of length 1. Zeros of a shape mean "as in the input", which changes meaning when the
input changes: they stay where the first of the two copies that axis as well, are resolved, or the chain
stays. A chain that ends in something else than a Reshape becomes one if at most one axis of its result is
open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope

_OPS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose")


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes(*_OPS):
        first = scope.producer(node.inputs[0], *_OPS)
        if first is None or {node.op, first.op} == {"Transpose"}:
            continue
        if _keeps_order(scope, node) and _keeps_order(scope, first):
            yield Match(node, {"source": first.inputs[0], "final": _final(scope, node, first)})


def _keeps_order(scope: Scope, node: Any) -> bool:
    """Whether the elements stay in order: of Transposes, if axes longer than 1 do."""
    if node.op != "Transpose":
        return True
    shape, order = node.inputs[0].shape, node.attrs.get("perm")
    if shape is None or order is None:
        return False
    moved = [place for place in order if shape[place] != 1]
    return moved == sorted(moved)


def _from_shape(scope: Scope, tensor: Any) -> list[int] | None:
    axes = (
        [axis if isinstance(axis, int) else -1 for axis in tensor.shape] if tensor.shape is not None else None
    )
    return None if axes is None or axes.count(-1) > 1 or 0 in axes else axes


def _final(scope: Scope, node: Any, first: Any) -> list[int] | None:
    """The result's shape as a Reshape of what `first` reads has it; None if it cannot be written so."""
    if node.op != "Reshape":
        return _from_shape(scope, node.outputs[0])
    axes = _constant(scope, node)
    if axes is None or 0 not in axes:
        return axes
    before = [] if first.attrs.get("allowzero") else _constant(scope, first) or []
    kept = [axis or _copied(before, place) for place, axis in enumerate(axes)]
    return kept if kept.count(-1) <= 1 else _from_shape(scope, node.outputs[0])


def _copied(before: list[int], place: int) -> int:
    """The axis that a second Reshape copies, in the words of the first: -1 if those do not have it."""
    return before[place] if place < len(before) and before[place] >= 0 else -1


def _constant(scope: Scope, node: Any) -> list[int] | None:
    shape = scope.value(node.inputs[1]) if node.op == "Reshape" else None
    return None if shape is None else [int(axis) for axis in shape]


def _computed_without_zeros(scope: Scope, node: Any) -> bool:
    """Whether a computed shape operand is a Concat of parts none of which is the constant 0."""
    if node.op != "Reshape" or node.attrs.get("allowzero"):
        return False
    maker = scope.producer(node.inputs[1], "Concat")
    parts = [] if maker is None else [scope.value(part) for part in maker.inputs]
    return maker is not None and all(part is None or (part != 0).all() for part in parts)


def _check(scope: Scope, match: Match) -> str | None:
    shape = scope.value(match.node.inputs[1]) if match.node.op == "Reshape" else None
    if match.node.attrs.get("allowzero") and (shape is None or 0 in shape):
        return "allowzero is set, and an axis may be empty"
    if match.parts["final"] is None and not _computed_without_zeros(scope, match.node):
        return "the final shape keeps more than one open axis, or copies one from its input"
    return None


def _apply(scope: Scope, match: Match) -> None:
    node, source, final = match.node, match.parts["source"], match.parts["final"]
    if final is None:
        scope.set_input(node, 0, source)
    else:
        scope.replace(
            node, "Reshape", [source, scope.constant(np.array(final, np.int64), f"{node.name}/shape")]
        )


RULE = Rule(
    "reshape-chain",
    "B",
    "Shuffle+Shuffle",
    _find,
    _check,
    _apply,
    stage=Stage.SHUFFLES,
    after=("plain-reshape",),
    evidence=(layers("no NoOp where both copy an axis; else it does it itself"),),
)
