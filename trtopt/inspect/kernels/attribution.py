"""Which ONNX nodes the launches of one layer serve, as far as evidence carries.

Products (MatMul, Gemm, convolutions) are the landmarks: each takes a kernel of its own, unless products that
read one tensor were merged, or an attention became one kernel. Where the layer's products, with or without
those merges, are as many as its product kernels, they are paired in order. A kernel between two of them
serves the nodes between, and of these only the kinds that its name mentions. A pair whose product cannot be
computed in the kernel's time is none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from trtopt.inspect.costs import FAMILIES, FREE
from trtopt.inspect.graph import Graph, Node
from trtopt.inspect.kernels.names import KernelTraits
from trtopt.records import Confidence, KernelFamily

_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Attention"})
_SERVED: dict[KernelFamily, Collection[str] | None] = {
    **{family: FAMILIES[family] for family in ("softmax", "pooling", "reduction")},
    "normalisation": {*FAMILIES["normalisation"], "ReduceMean"},
    "pointwise": None,
}
"""Operators of which a kernel between products must serve one; None: any."""
_STEPS: dict[str, frozenset[str]] = {
    op: frozenset(steps.split())
    for op, steps in {
        "Add": "Add", "Sub": "Sub", "Mul": "Mul", "Div": "Div", "Sqrt": "Sqr", "Pow": "Pow", "Erf": "Erf",
        "Cast": "Cas", "Gather": "Gat",
        "GatherElements": "Gat", "GatherND": "Gat", "Slice": "Sli", "Split": "Sli", "Concat": "Con",
        "Transpose": "Tra", "Expand": "Rep", "Where": "Sel", "Equal": "Eql", "Greater": "Gtr",
        "GreaterOrEqual": "Gtr", "And": "And", "Or": "Or", "Range": "Iot", "ReduceMean": "Mea",
        "LayerNormalization": "Mea Sqr", "Gelu": "Erf",
    }.items()
}  # fmt: skip
"""How TensorRT's graph compiler writes operators into names, as far as it has been seen to."""
_MOVES = frozenset({"Cast", "Transpose", "Slice", "Split", "Concat", "Expand"})


@dataclass(frozen=True)
class Served:
    """The nodes that a launch serves; `copies_weights`: it computes nothing for them."""

    nodes: tuple[Node, ...]
    confidence: Confidence
    copies_weights: bool = False


UNKNOWN = Served((), "unknown")
_Group = tuple[tuple[Node, ...], KernelFamily]
"""Products and what lies between them, with the kind of kernel that computes them together."""


def attribute(
    launches: Sequence[KernelTraits],
    nodes: Sequence[Node],
    graph: Graph,
    is_possible: Callable[[int, tuple[Node, ...]], bool] = lambda index, nodes: True,
    threads: Sequence[int] = (),
) -> list[Served]:
    """For each launch of a layer, in order, the nodes that it serves; `nodes` are the layer's.

    `is_possible` refuses a launch, by index, that is too short for its nodes; `threads` are each launch's.
    """
    families = [launch.family for launch in launches]
    own = (node for node in nodes if node.op not in FREE and not _is_of_shapes(node, graph))
    working = tuple(sorted(own, key=lambda one: one.index))
    if not working:
        return [UNKNOWN] * len(families)
    if len(working) == 1 or len(families) == 1:
        return [Served(working, "certain")] * len(families)
    kernels = [index for index, family in enumerate(families) if family in ("product", "attention")]
    landmarks = _landmarks(working, [families[index] for index in kernels], graph)
    if landmarks is None:
        return [UNKNOWN] * len(families)
    found = [UNKNOWN] * len(families)
    for index, landmark in zip(kernels, landmarks, strict=True):
        if is_possible(index, landmark):
            found[index] = Served(landmark, "likely")
    _fill_between(found, launches, kernels, landmarks, working)
    if threads:
        merged = {
            index: nodes
            for index, nodes in zip(kernels, landmarks, strict=True)
            if len(nodes) > 1 and families[index] == "product"
        }
        for index, products in weight_copies(launches, threads, merged, graph).items():
            if found[index] == UNKNOWN:
                found[index] = Served(products, "likely", copies_weights=True)
    return found


def _is_of_shapes(node: Node, graph: Graph) -> bool:
    """Whether it computes a number or a list of such, as for shapes: TensorRT does that ahead."""
    shape, dtype = graph.shapes.get(node.outputs[0]), graph.dtypes.get(node.outputs[0], "")
    return shape is not None and len(shape) <= 1 and "int" in dtype


def _fill_between(
    found: list[Served],
    launches: Sequence[KernelTraits],
    kernels: Sequence[int],
    landmarks: Sequence[tuple[Node, ...]],
    working: Sequence[Node],
) -> None:
    """What ran between two product kernels serves nodes between their products, if it is of their kind.

    What serves none of these may serve a branch that the graph has before them and nothing has served yet.
    """
    taken = {node.index for landmark in landmarks for node in landmark}
    edges = [-1, *kernels, len(launches)]
    for place in range(len(edges) - 1):
        after = max((node.index for node in landmarks[place - 1]), default=-1) if place else -1
        before = min(node.index for node in landmarks[place]) if place < len(landmarks) else None
        between = [
            node
            for node in working
            if node.index not in taken and node.index > after and (before is None or node.index < before)
        ]
        for index in range(edges[place] + 1, edges[place + 1]):
            launch = launches[index]
            if launch.family == "split-k" and place:
                found[index] = found[edges[place]]
            elif launch.family in _SERVED:
                own = _of_its_kind(launch, between)
                if not own and launch.steps:
                    served = taken | {node.index for one in found for node in one.nodes}
                    earlier = [node for node in working if node.index < after and node.index not in served]
                    own = _of_its_kind(launch, earlier)
                if own:
                    found[index] = Served(own, "likely")


def _of_its_kind(launch: KernelTraits, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes that a kernel may serve, by the operators in its name, else by its family."""
    if launch.steps:
        own = tuple(node for node in nodes if _STEPS.get(node.op, frozenset()) & launch.steps)
        told = {node.op for node in own} - _MOVES
        return own if told or launch.steps <= MOVING_STEPS else ()
    wanted = _SERVED[launch.family]
    return tuple(nodes) if wanted is None or any(node.op in wanted for node in nodes) else ()


def _landmarks(
    working: Sequence[Node], kernels: Sequence[KernelFamily], graph: Graph
) -> list[tuple[Node, ...]] | None:
    """As many groups of products as there are product kernels, in order; None where no merge makes it so."""
    products = [node for node in working if node.op in _PRODUCTS]
    if not products or not kernels:
        return None
    for merges_attention, merges_siblings in product((True, False), repeat=2):
        groups: list[_Group] = [((node,), "product") for node in products]
        if merges_attention:
            groups = _with_attention(products, working, graph)
        if merges_siblings:
            groups = _with_siblings(groups, graph)
        if [kind for _, kind in groups] == list(kernels):
            return [nodes for nodes, _ in groups]
    return None


def _with_attention(products: Sequence[Node], working: Sequence[Node], graph: Graph) -> list[_Group]:
    """Two products without weights and the Softmax between them as one."""
    made: list[_Group] = []
    waiting = [*reversed(products)]
    while waiting:
        node = waiting.pop()
        if node.op == "Attention":
            made.append(((node,), "attention"))
        elif waiting and _is_attention(node, waiting[-1], working, graph):
            last = waiting.pop()
            inside = tuple(one for one in working if node.index <= one.index <= last.index)
            made.append((inside, "attention"))
        else:
            made.append(((node,), "product"))
    return made


def _is_attention(first: Node, second: Node, working: Sequence[Node], graph: Graph) -> bool:
    has_weights = graph.weight_of(first) or graph.weight_of(second)
    inside = (node.op for node in working if first.index < node.index < second.index)
    return not has_weights and "Softmax" in inside


def _with_siblings(groups: Sequence[_Group], graph: Graph) -> list[_Group]:
    """Products with weights that read one tensor and follow one another as one, as for Q, K and V."""
    made: list[_Group] = []
    for nodes, kind in groups:
        reads = _data_input(nodes, graph)
        if made and reads is not None and _data_input(made[-1][0], graph) == reads:
            made[-1] = (made[-1][0] + nodes, kind)
        else:
            made.append((nodes, kind))
    return made


def _data_input(group: tuple[Node, ...], graph: Graph) -> str | None:
    """The tensor that all products of a group read next to their weights, seen through Q and DQ."""
    if any(node.op not in _PRODUCTS or not graph.weight_of(node) for node in group):
        return None
    return graph.before_pairs(group[0].inputs[0])


# Kernels that put the weights of merged products side by side, in every inference.
#
# TensorRT's graph compiler may merge quantised products that read one tensor (Q, K and V), and then copies
# their weights together whenever the engine runs, not once when it is built (seen on 8.6: `Mov` for each
# one, `Res` for all). Such a kernel only moves data, and by its threads it moves one of the weights, or all
# of them.


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
