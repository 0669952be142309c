"""Unsqueeze(Reduce(x, axes, keepdims=0), axes) → Reduce(x, axes, keepdims=1), and Squeeze the other way.

A reduction either drops the axes that it reduces or leaves them with length 1, at no cost. Putting them back,
or taking them out, with a node of its own is a Shuffle that TensorRT need not see.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.match import REDUCTIONS, axes_of, keeps_axes, operands
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Squeeze", "Unsqueeze"):
        first = scope.producer(node.inputs[0], *REDUCTIONS)
        if first is not None and keeps_axes(first) == (node.op == "Squeeze"):
            axes = axes_of(scope, first)
            if axes and axes == _moved(scope, node, first):
                yield Match(node, {"first": first, "axes": axes})


def _moved(scope: Scope, node: Any, first: Any) -> list[int] | None:
    """The axes that Squeeze takes out or Unsqueeze puts in, counted from the front of the longer shape."""
    axes, rank = scope.integers(node, "axes", 1), scope.rank(first.inputs[0])
    return None if axes is None or rank is None else sorted(axis % rank for axis in axes)


def _check(scope: Scope, match: Match) -> str | None:
    if scope.only_use(match.parts["first"].outputs[0]) is None:
        return "the reduction is used elsewhere, or is an output: it would be computed twice"
    return None


def _apply(scope: Scope, match: Match) -> None:
    first, node = match.parts["first"], match.node
    keep = node.op == "Unsqueeze"
    inputs, attrs = operands(scope, first.op, first.inputs[0], match.parts["axes"], keep, node.name)
    scope.replace(node, first.op, inputs, attrs)


RULE = Rule(
    "reduce-keepdims",
    "B",
    "no Shuffle behind a reduction",
    _find,
    _check,
    _apply,
    stage=Stage.SHUFFLES,
    after=("transpose-reduce",),
    evidence=(layers("no layers around the reduction"),),
)
