"""The parts of a graph that a target can take, between the nodes that it cannot."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from trtopt.onnxio.graph_walk import DisjointNames, reads_of
from trtopt.records import Subgraph

if TYPE_CHECKING:
    import onnx


def subgraphs_between(
    graph: onnx.GraphProto, refused: Collection[str], unknown: Collection[str] = ()
) -> tuple[Subgraph, ...]:
    """The connected parts of a sorted graph without the nodes called so, the largest first.

    A node's depth is how many refused nodes lie on the longest way to it. Nodes of one depth can be built
    together: a way from one to another through a refused node would end deeper. What follows from constants
    alone belongs to none.
    """
    refused, unknown = {*refused}, {*unknown}
    constants = {one.name for one in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.name in refused or not reads_of(node) <= constants:
            nodes.append(node)
        else:
            constants.update(node.output)
    reads = {node.name: reads_of(node) for node in nodes}
    makers = {name: node.name for node in nodes for name in node.output if name}
    depths: dict[str, int] = {}
    sets = DisjointNames(reads)
    for name, tensors in reads.items():
        before = {makers[tensor] for tensor in tensors if tensor in makers}
        depths[name] = max((depths[one] + (one in refused) for one in before), default=0)
        if name not in refused:
            alike = (one for one in before if one not in refused and depths[one] == depths[name])
            sets.join(name, *sorted(alike))
    parts: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        if node.name not in refused:
            parts.setdefault(sets.root(node.name), []).append(node)
    found = []
    for part in parts.values():
        inside = {node.name: None for node in part}
        made = [name for node in part for name in node.output if name]
        entering = {tensor: None for name in inside for tensor in sorted(reads[name])}
        others = {one.name for one in graph.output}.union(
            *(tensors for name, tensors in reads.items() if name not in inside)
        )
        found.append(
            Subgraph(
                nodes=tuple(inside),
                inputs=tuple(one for one in entering if one not in made and one not in constants),
                outputs=tuple(one for one in made if one in others),
                is_imported=not inside.keys() & unknown,
            )
        )
    return tuple(sorted(found, key=lambda one: -len(one.nodes)))
