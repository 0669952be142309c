"""The length of an axis is read from the tensor where the axis originates, not from later ones.

Gather(Shape(x), i) where axis i of x comes from axis j of y → Gather(Shape(y), j). Exporters read it again in
every layer; afterwards `share-equal` leaves one such node. Cleaning only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trtopt.rewrite.axes import Axes, lengths_requested
from trtopt.rewrite.rule import Match, Rule, Stage, always
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    axes = Axes(scope)
    for node in scope.nodes():
        requested = lengths_requested(scope, node.outputs[0]) if scope.is_one_of(node, "Gather") else None
        if requested is not None and len(requested) == 1:
            origin = axes.of(*requested[0])
            if origin[0] is not requested[0][0]:
                yield Match(node, {"origin": origin})
        axes.learn(node)


def _apply(scope: Scope, match: Match) -> None:
    node, (tensor, place) = match.node, match.parts["origin"]
    shape = scope.compute(node, "Shape", [tensor], node.inputs[0])
    index = np.full(tuple(node.inputs[1].shape), place, scope.dtype(node.inputs[1]))
    scope.replace(node, "Gather", [shape, scope.constant(index, f"{node.name}/axis")], {"axis": 0})


RULE = Rule("shared-axes", "B", "", _find, always, _apply, stage=Stage.SHUFFLES, after=("transpose-reduce",))
