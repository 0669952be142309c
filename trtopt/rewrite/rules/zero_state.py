"""LSTM, GRU or RNN whose initial state is zeros → the same without: ONNX starts at zero where none is given.

Exporters compute zeros as long as the batch, out of its Shape. What computed them dies with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx_graphsurgeon as gs

from trtopt.rewrite.rule import Match, Rule, always
from trtopt.rewrite.scope import Scope

_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
_PASS_ON = ("Slice", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Identity")


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes(*_STATES):
        given = [place for place in _STATES[node.op] if place < len(node.inputs)]
        zeros = [place for place in given if _is_zero(scope, node.inputs[place])]
        if zeros:
            yield Match(node, {"places": zeros})


def _is_zero(scope: Scope, tensor: Any) -> bool:
    """Whether all elements are 0, whatever their number."""
    while (node := scope.producer(tensor, *_PASS_ON)) is not None:
        tensor = node.inputs[0]
    value = scope.value(tensor)
    if value is None:
        fill = scope.producer(tensor, "ConstantOfShape")
        value = None if fill is None else fill.attrs.get("value")
        if value is None:
            return fill is not None  # the default of ConstantOfShape
        value = value.values
    return bool((value == 0).all())


def _apply(scope: Scope, match: Match) -> None:
    node = match.node
    for place in match.parts["places"]:
        scope.set_input(node, place, gs.Variable.empty())
    while node.inputs[-1].is_empty():
        node.inputs.pop()


RULE = Rule("zero-state", "B", "no shape layers", _find, always, _apply, audit="8.6 does it itself")
