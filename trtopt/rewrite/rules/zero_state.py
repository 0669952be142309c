"""LSTM, GRU or RNN whose initial state is zeros → the same without it: ONNX starts at zero by default.

Exporters compute zeros as long as the batch, out of its Shape. What computed them dies with them.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.match import is_filled_with
from trtopt.rewrite.rule import Match, Rule, Stage, always
from trtopt.rewrite.scope import Scope

_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes(*_STATES):
        given = [place for place in _STATES[node.op] if place < len(node.inputs)]
        zeros = [place for place in given if is_filled_with(scope, node.inputs[place], 0)]
        if zeros:
            yield Match(node, {"places": zeros})


def _apply(scope: Scope, match: Match) -> None:
    node = match.node
    for place in match.parts["places"]:
        scope.set_input(node, place, gs.Variable.empty())
    while node.inputs[-1].is_empty():
        node.inputs.pop()


RULE = Rule(
    "zero-state",
    "B",
    "no shape layers",
    _find,
    always,
    _apply,
    stage=Stage.CLEANING,
    evidence=(layers("does it itself"),),
)
