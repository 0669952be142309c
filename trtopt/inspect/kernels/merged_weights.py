"""Kernels that put the weights of merged products side by side, in every inference.

TensorRT's graph compiler may merge quantised products that read one tensor (Q, K and V), and then copies
their weights together whenever the engine runs, not once when it is built (seen on 8.6: `Mov` for each one,
`Res` for all). Such a kernel only moves data, and by its threads it moves one of the weights, or all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from trtopt.inspect.graph import Graph, Node
from trtopt.inspect.kernels.names import KernelTraits

MOVING_STEPS = frozenset({"Cas", "Res", "Tra", "Mov", "Sli", "Con", "Rep"})
"""What only moves data, or is put in for types."""
_ELEMENTS_PER_THREAD = (1, 2, 4, 8, 16)


def weight_copies(
    launches: Sequence[KernelTraits],
    threads: Sequence[int],
    merged: Mapping[int, tuple[Node, ...]],
    graph: Graph,
) -> dict[int, tuple[Node, ...]]:
    """The merged products that launches copy weights for; each serves the next ones that lack a copy.

    `threads` are each launch's in all; `merged` has the products of kernels that compute several, by launch.
    """
    sizes = {place: [_size(node, graph) for node in nodes] for place, nodes in merged.items()}
    wanted = {place: [*own, sum(own)] for place, own in sizes.items()}
    found = {}
    for index, launch in enumerate(launches):
        if not launch.steps or not launch.steps <= MOVING_STEPS:
            continue
        moved = {threads[index] * elements for elements in _ELEMENTS_PER_THREAD}
        for place, left in wanted.items():
            size = next((one for one in left if one in moved), None)
            if place > index and size is not None:
                left.remove(size)
                found[index] = merged[place]
                break
    return found


def _size(node: Node, graph: Graph) -> int:
    """Elements of a product's weight; 0, which no kernel moves, where its shape is unknown."""
    weight = graph.weight_of(node)
    return prod(graph.shapes.get(weight) or (0,)) if weight is not None else 0
