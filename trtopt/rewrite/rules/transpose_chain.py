"""Transpose(Transpose(x, p), q) → Transpose(x, p[q]).

Axis i of the result is axis q[i] of the middle, which is axis p[q[i]] of x. If that is the identity,
`erase-shuffle` takes the rest out. TensorRT does Shuffle + Shuffle itself; this shortens what it must see.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _order(scope: Scope, node: Any) -> list[int] | None:
    """Where each axis of the output comes from; without `perm` all are reversed."""
    rank = scope.rank(node.inputs[0])
    given = node.attrs.get("perm")
    return list(given) if given is not None else None if rank is None else list(range(rank))[::-1]


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Transpose"):
        first = scope.producer(node.inputs[0], "Transpose")
        if first is None:
            continue
        inner, outer = _order(scope, first), _order(scope, node)
        if inner is not None and outer is not None:
            yield Match(node, {"first": first, "order": [inner[axis] for axis in outer]})


def _check(scope: Scope, match: Match) -> str | None:
    return None if match.parts["order"] else "a scalar has no axes to put in order"


def _apply(scope: Scope, match: Match) -> None:
    match.node.attrs["perm"] = match.parts["order"]
    scope.set_input(match.node, 0, match.parts["first"].inputs[0])


RULE = Rule(
    "transpose-chain",
    "B",
    "Shuffle+Shuffle",
    _find,
    _check,
    _apply,
    stage=Stage.SHUFFLES,
    evidence=(layers("does it itself"),),
)
