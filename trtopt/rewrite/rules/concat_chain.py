"""Concat(a, Concat(b, c)) along one axis → Concat(a, b, c), where nothing else reads the inner one.

Exporters put the size of a Resize together in two steps, and so do networks that join features as they come.
TensorRT copies every input of a Concat that it cannot write in place: here those of the inner one twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Concat"):
        for tensor in list(node.inputs):
            inner = scope.producer(tensor, "Concat")
            if inner is not None:
                yield Match(node, {"inner": inner})


def _check(scope: Scope, match: Match) -> str | None:
    node, inner = match.node, match.parts["inner"]
    if scope.only_use(inner.outputs[0]) is None:
        return "the inner result is used elsewhere"
    rank, axes = scope.rank(node.outputs[0]), (node.attrs["axis"], inner.attrs["axis"])
    if axes[0] != axes[1] and (rank is None or axes[0] % rank != axes[1] % rank):
        return "they join along different axes"
    return None


def _apply(scope: Scope, match: Match) -> None:
    node, inner = match.node, match.parts["inner"]
    joined = inner.outputs[0]
    node.inputs = [part for item in node.inputs for part in (inner.inputs if item is joined else [item])]
    scope.kill(inner)


RULE = Rule(
    "concat-chain",
    "B",
    "one copy instead of two",
    _find,
    _check,
    _apply,
    stage=Stage.SHUFFLES,
    after=("slice-chain",),
    evidence=(layers("one copy less"),),
)
