"""Reduce(Transpose(x, p), axes) → Reduce(x, p[axes]), where what is left stays in order.

Axis i of the transposed tensor is axis p[i] of x. With `keepdims` the result's axes still carry the order p,
so the rule applies if p with the reduced axes made length 1 moves no other axis past another; without it, if
the kept axes p[i] rise. A reduction over leading axes thereby becomes one over the axes where they lay: often
the trailing ones, which is where TensorRT reduces fastest. The sum's order may change, hence N.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.match import REDUCTIONS, axes_of, keeps_axes, operands
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes(*REDUCTIONS):
        first = scope.producer(node.inputs[0], "Transpose")
        axes = axes_of(scope, node)
        if first is not None and axes and "perm" in first.attrs:
            yield Match(node, {"first": first, "axes": axes})


def _check(scope: Scope, match: Match) -> str | None:
    order, axes = list(match.parts["first"].attrs["perm"]), match.parts["axes"]
    kept = [order[place] for place in range(len(order)) if place not in axes]
    if kept != sorted(kept):
        return "the axes that remain change their order"
    moved = any(order[place] != place for place in range(len(order)) if place not in axes)
    if keeps_axes(match.node) and moved:
        return "the axes of length 1 would lie elsewhere"
    return None


def _apply(scope: Scope, match: Match) -> None:
    first, node = match.parts["first"], match.node
    axes = sorted(first.attrs["perm"][axis] for axis in match.parts["axes"])
    inputs, attrs = operands(scope, node.op, first.inputs[0], axes, keeps_axes(node), node.name)
    scope.replace(node, node.op, inputs, attrs)


RULE = Rule(
    "transpose-reduce",
    "N",
    "Shuffle+Reduce; tail reduce",
    _find,
    _check,
    _apply,
    stage=Stage.SHUFFLES,
    evidence=(layers("no Shuffle"),),
)
