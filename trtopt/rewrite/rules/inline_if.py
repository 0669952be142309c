"""If whose condition is a constant → the nodes of the branch that is taken.

Exporters leave such Ifs where they test a rank or a flag that is fixed. TensorRT runs an If as a
conditional with borders that nothing fuses across, and wants both branches to have one shape.
Names made in the branch stay, unless the graph around it or one inside its nodes has them too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtopt.rewrite.evidence import layers, quantises
from trtopt.rewrite.rule import Match, Rule, Stage, always
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("If"):
        condition = scope.value(node.inputs[0])
        if condition is not None and condition.size == 1:
            taken = "then_branch" if condition.reshape(-1)[0] else "else_branch"
            yield Match(node, {"branch": node.attrs[taken]})


def _names_around(scope: Scope, node: Any, branch: Any) -> dict[str, set[int]]:
    """Which tensors each name stands for once the branch has moved; graphs inside nodes see its names too."""
    found: dict[str, set[int]] = {}
    inside = (*branch.subgraphs(recursive=True), *(
        graph for other in scope.graph.nodes if other is not node for graph in other.subgraphs(recursive=True)
    ))  # fmt: skip
    for graph in (scope.graph, *inside):
        used = [tensor for other in graph.nodes for tensor in (*other.inputs, *other.outputs)]
        for tensor in (*graph.inputs, *graph.outputs, *used):
            found.setdefault(tensor.name, set()).add(id(tensor))
    return found


def _apply(scope: Scope, match: Match) -> None:
    node, branch = match.node, match.parts["branch"]
    around = _names_around(scope, node, branch)
    made = {id(tensor): tensor for inner in branch.nodes for tensor in inner.outputs if not tensor.is_empty()}
    read = [tensor for inner in branch.nodes for tensor in inner.inputs]
    constants = {id(tensor): tensor for tensor in (*read, *branch.outputs) if scope.is_constant(tensor)}
    results = {id(tensor) for tensor in branch.outputs}
    for key, tensor in {**made, **constants}.items():
        clashes = around.get(tensor.name, set()) - {key}
        if clashes or key in results & made.keys():  # it would still be taken for a subgraph's output
            tensor.name = scope.context.fresh(tensor.name)
    scope.adopt(branch, node)
    outputs = list(node.outputs)
    node.outputs.clear()
    for own, result in zip(outputs, branch.outputs, strict=True):
        scope.insert(node, "Identity", [result], [own])
    scope.kill(node)


RULE = Rule(
    "inline-if",
    "B",
    "fusion across the border of a conditional",
    _find,
    always,
    _apply,
    stage=Stage.CLEANING,
    evidence=(layers("does it itself"), quantises("nodes in branches of an If")),
)
