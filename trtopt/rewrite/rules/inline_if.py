"""If whose condition is a constant → the nodes of the branch that is taken.

Exporters leave such Ifs where they ask for a rank or a flag that is fixed. TensorRT runs an If as a
conditional with borders that nothing fuses across, and wants both branches to have one shape.
Names made in the branch stay, unless the graph around it has them too.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.rewrite.rule import Match, Rule, always
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("If"):
        condition = scope.value(node.inputs[0])
        if condition is not None and condition.size == 1:
            taken = "then_branch" if condition.reshape(-1)[0] else "else_branch"
            yield Match(node, {"branch": node.attrs[taken]})


def _apply(scope: Scope, match: Match) -> None:
    node, branch = match.node, match.parts["branch"]
    around = {
        tensor.name: tensor for other in scope.graph.nodes for tensor in (*other.inputs, *other.outputs)
    }
    results = {id(tensor) for tensor in branch.outputs}
    for inner in branch.nodes:
        for tensor in (*inner.inputs, *inner.outputs):
            clashes = not tensor.is_empty() and around.get(tensor.name, tensor) is not tensor
            made_as_result = id(tensor) in results and any(tensor is out for out in inner.outputs)
            if clashes or made_as_result:  # the name of a subgraph's output would still be taken for one
                tensor.name = scope.context.fresh(tensor.name)
                results.discard(id(tensor))
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
    audit="8.6 does it itself",
)
