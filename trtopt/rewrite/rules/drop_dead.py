"""Nodes whose outputs are unused are dropped, and then those that only they needed. Cleaning only."""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.rewrite.rule import Match, Rule, Stage, always
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes():
        if not any(out.outputs or scope.is_fixed(out) for out in node.outputs):
            yield Match(node)


def _apply(scope: Scope, match: Match) -> None:
    scope.kill(match.node)


RULE = Rule("drop-dead", "B", "", _find, always, _apply, stage=Stage.CLEANING, after=("fold-constants",))
