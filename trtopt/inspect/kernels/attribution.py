"""Which layer a launch belongs to, and which ONNX nodes it serves, as far as evidence carries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import product
from math import prod

import numpy as np

from trtopt.inspect.costs import FAMILIES, FREE
from trtopt.inspect.graph import Graph, Node
from trtopt.inspect.kernels.names import KernelTraits
from trtopt.records import (
    Confidence,
    KernelActivity,
    KernelFamily,
    KernelLaunch,
    LaunchCall,
    NvtxRange,
    ProfiledLayer,
    TracedRun,
)

# The layer, by order and time.
#
# Both the profiler's layers and the launches are in the order in which they ran. The launches are cut into
# consecutive stretches, one for each layer, so that the stretches' times differ least from the layers' in
# all.


Home = tuple[int, Confidence]
"""The index of a launch's layer, -1 for none, and how well that is known."""

_FIT_SHARE = 0.25
_FIT_MS = 0.005
"""A stretch fits its layer within a quarter of its time, or the microseconds of a profiler's events."""


def assign_layers(launch_ms: Sequence[float], layer_ms: Sequence[float]) -> list[Home]:
    """For each launch the index of its layer, and how well that is known.

    Layers without time get no launch. With one layer nothing else is possible; otherwise launches of a
    stretch that does not fit its layer are `unknown`.
    """
    timed = [index for index, ms in enumerate(layer_ms) if ms > 0]
    if not timed:
        return [(-1, "unknown")] * len(launch_ms)
    if len(timed) == 1:
        return [(timed[0], "certain")] * len(launch_ms)
    ends = _cut(np.asarray(launch_ms, float), np.asarray([layer_ms[index] for index in timed], float))
    found: list[Home] = []
    begin = 0
    for index, end in zip(timed, ends, strict=True):
        error = abs(sum(launch_ms[begin:end]) - layer_ms[index])
        fits = error <= max(_FIT_MS, _FIT_SHARE * layer_ms[index])
        found += [(index, "likely" if fits else "unknown")] * (end - begin)
        begin = end
    return found


def _cut(launches: np.ndarray, layers: np.ndarray) -> list[int]:
    """The end of each layer's stretch: dynamic programming over (layer, launches so far)."""
    reached = np.concatenate([[0.0], np.cumsum(launches)])
    size = len(reached)
    never = np.triu(np.ones((size, size), bool), 1)  # a stretch does not end before it begins
    best = np.full(size, np.inf)
    best[0] = 0.0
    choices = []
    for ms in layers:
        cost = best[None, :] + np.abs(reached[:, None] - reached[None, :] - ms)
        cost[never] = np.inf
        np.fill_diagonal(cost, cost.diagonal() + ms)  # a layer that took time rather has a launch
        choices.append(cost.argmin(axis=1))
        best = cost.min(axis=1)
    ends = [size - 1]
    for choice in reversed(choices[1:]):
        ends.append(int(choice[ends[-1]]))
    return ends[::-1]


# Which layer a launch belongs to, by the NVTX range that TensorRT opened around its call.
#
# In plain runs TensorRT opens a range for each layer while it enqueues it. The call that launched a kernel
# has the kernel's correlation id, and lies inside the range of its layer. Launches of a CUDA graph have no
# such calls: they are matched with those of the plain runs by order and name.


_DOMAIN = "TensorRT"
_NOWHERE: Home = (-1, "unknown")


def assign_by_ranges(
    launches: Sequence[KernelLaunch],
    runs: Sequence[TracedRun],
    layers: Sequence[ProfiledLayer],
    by_order: Sequence[Home],
) -> tuple[list[Home], list[str]]:
    """For each launch the index of its layer and how well that is known, and notes on what stayed open.

    `runs` are plain, with calls and ranges. Where they name no layer, that of `by_order` stands if it lies
    between the layers of the launches before and after.
    """
    names = [_key(one) for one in launches]
    ordered = [sorted(run.activities, key=lambda one: (one.start_ns, one.end_ns)) for run in runs]
    matches = [_matched(names, [_key(one) for one in run]) for run in ordered]
    is_same = [len(pairs) == len(names) == len(run) for pairs, run in zip(matches, ordered, strict=True)]
    found: list[set[Home]] = [set() for _ in launches]
    for run, activities, pairs, same in zip(runs, ordered, matches, is_same, strict=True):
        if any(is_same) and not same:
            continue
        homes = _homes(run, activities, layers)
        for launch, activity in pairs.items():
            index, confidence = homes[activity]
            found[launch].add((index, confidence if same or index < 0 else "likely"))
    agreed = [_agreed(homes) for homes in found]
    if all(index < 0 for index, _ in agreed):
        return list(by_order), ["layers by order and time: TensorRT's NVTX ranges name none of them"]
    unmatched = sorted(set(range(len(names))) - {launch for pairs in matches for launch in pairs})
    note = "plain runs, in which NVTX ranges name the layers, launch other kernels: matched by order and name"
    if unmatched:
        note += f", but for {len(unmatched)} of {len(launches)}, such as {launches[unmatched[0]].name}"
    return _filled(agreed, by_order), [] if any(is_same) else [note]


def _key(one: KernelActivity | KernelLaunch) -> tuple[str, str]:
    return one.kind, one.name


def _matched(ours: Sequence[object], theirs: Sequence[object]) -> dict[int, int]:
    """Places of equal items in both, in order."""
    blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    return {block.a + step: block.b + step for block in blocks for step in range(block.size)}


def _agreed(homes: set[Home]) -> Home:
    """What all runs say; unknown where they differ."""
    indices = {index for index, _ in homes}
    if len(indices) != 1:
        return _NOWHERE
    (index,) = indices
    return (index, "certain" if homes == {(index, "certain")} else "likely") if index >= 0 else _NOWHERE


def _homes(
    run: TracedRun, activities: Sequence[KernelActivity], layers: Sequence[ProfiledLayer]
) -> list[Home]:
    """The layer of each activity of a run."""
    counts = Counter(layer.name for layer in layers)
    places = {layer.name: index for index, layer in enumerate(layers) if counts[layer.name] == 1}
    own = [one for one in run.ranges if one.domain.startswith(_DOMAIN) and one.name in places]
    ranges = sorted(own, key=lambda one: one.start_ns)
    calls = {one.correlation_id: one for one in run.calls}
    timed = [one for one in ranges if layers[places[one.name]].ms]
    return [
        _by_call(calls[one.correlation_id], ranges, places)
        if one.correlation_id in calls
        else _by_time(one, run.calls, timed, places)
        for one in activities
    ]


def _by_call(call: LaunchCall, ranges: Sequence[NvtxRange], places: Mapping[str, int]) -> Home:
    """The innermost range around the call."""
    for one in reversed(ranges):
        is_around = one.start_ns <= call.start_ns and call.end_ns <= one.end_ns
        if is_around and one.thread in (None, call.thread):
            return places[one.name], "certain"
    return _NOWHERE


def _by_time(
    one: KernelActivity, calls: Sequence[LaunchCall], ranges: Sequence[NvtxRange], places: Mapping[str, int]
) -> Home:
    """The only range that was open when it can have been launched: ids of calls ascend."""
    before = [call.end_ns for call in calls if call.correlation_id < one.correlation_id]
    after = [call.start_ns for call in calls if call.correlation_id > one.correlation_id]
    earliest, latest = max(before, default=0), min([one.start_ns, *after])
    possible = {places[each.name] for each in ranges if each.start_ns <= latest and each.end_ns >= earliest}
    return (possible.pop(), "likely") if len(possible) == 1 else _NOWHERE


def _filled(homes: Sequence[Home], by_order: Sequence[Home]) -> list[Home]:
    """Launches that no range names a layer for get that of both neighbours, or one by order between them."""
    filled: list[Home] = list(homes)
    for place, (index, _) in enumerate(homes):
        if index >= 0:
            continue
        before = next((home for home, _ in reversed(homes[:place]) if home >= 0), None)
        after = next((home for home, _ in homes[place:] if home >= 0), None)
        low, high = (-1 if before is None else before), (float("inf") if after is None else after)
        if low == high:
            filled[place] = low, "likely"
        else:
            filled[place] = by_order[place] if low <= by_order[place][0] <= high else _NOWHERE
    return filled


# The nodes of its layer that a launch serves.
#
# Products (MatMul, Gemm, convolutions) are the landmarks: each takes a kernel of its own, unless products
# that read one tensor were merged, or an attention became one kernel. Where the layer's products, with or
# without those merges, are as many as its product kernels, they are paired in order. A kernel between two of
# them serves the nodes between, and of these only the kinds that its name mentions. A pair whose product
# cannot be computed in the kernel's time is none.


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
