"""Where Q/DQ pay: the quantised regions of a graph, and what each costs in an engine against a float one.

A region is the quantised nodes that hang together: one reads, through Q and DQ, what another one made with
nothing in between but nodes that fuse or merely move values; or both read the same quantised tensor. It is
the least that can be left in float without new Q/DQ inside of what stays quantised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trtopt.inspect.explanation import connected
from trtopt.inspect.graph import DEQUANTIZE, QUANTIZE, Graph, Node
from trtopt.onnxio.graph_walk import DisjointNames
from trtopt.records import EngineProfile, ProfiledLayer, RegionTime

_PAIR = {QUANTIZE, DEQUANTIZE}
_CAST = "Cast"
_INSIDE = {
    "Relu", "LeakyRelu", "PRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Selu",
    "Mish", "Softplus", "Gelu", "Erf", "Add", "Mul", "Div", "BatchNormalization", "Cast",
    "MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Resize", "Pad", "Slice", "Split",
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose",
}  # fmt: skip
"""Operators that fuse with the layer in front of them, move values, or run in INT8 between Q/DQ."""


@dataclass(frozen=True)
class Region:
    """Names: its quantised nodes in the file's order, and the Q and DQ in front of them, with their casts."""

    nodes: tuple[str, ...]
    pairs: frozenset[str]


# ── regions of a graph ──────────────────────────────────────────────────────────────────────────────────


def find_regions(graph: Graph) -> tuple[Region, ...]:
    """The regions of a graph with Q/DQ, in the file's order; none without."""
    pairs = {node.name: _pairs_before(graph, node) for node in graph.nodes if node.op not in _PAIR}
    quantized = [node for node in graph.nodes if pairs.get(node.name)]
    groups = DisjointNames(node.name for node in quantized)
    readers: dict[str, list[str]] = {}
    for node in quantized:
        for pair in pairs[node.name]:
            if pair.op == QUANTIZE and not graph.is_constant(pair.inputs[0]):
                readers.setdefault(pair.inputs[0], []).append(node.name)
    for names in readers.values():
        groups.join(*names)
    for node in quantized:
        groups.join(node.name, *_fed_by(graph, node, readers, pairs))
    members: dict[str, list[str]] = {}
    for node in quantized:
        members.setdefault(groups.root(node.name), []).append(node.name)
    return tuple(
        Region(tuple(names), frozenset(pair.name for name in names for pair in pairs[name]))
        for names in members.values()
    )


def _pairs_before(graph: Graph, node: Node) -> list[Node]:
    """The DQ that a node reads, as they are or cast, and the Q in front of them; of weights too.

    A cast reads them for others, and cannot be left in float by itself.
    """
    if node.op == _CAST:
        return []
    found: list[Node] = []
    for name in node.inputs:
        chain: list[Node] = []
        one = graph.producer.get(name)
        while one is not None and one.op == _CAST:
            chain.append(one)
            one = graph.producer.get(one.inputs[0])
        if one is not None and one.op == DEQUANTIZE:
            before = graph.producer.get(one.inputs[0])
            found += [*chain, one, *([before] if before is not None and before.op == QUANTIZE else [])]
    return found


def _fed_by(
    graph: Graph, node: Node, readers: Mapping[str, Sequence[str]], pairs: Mapping[str, Sequence[Node]]
) -> Iterator[str]:
    """Quantised nodes that a node's output reaches without passing what neither fuses nor moves values."""
    waiting, seen = list(node.outputs), set(node.outputs)
    while waiting:
        tensor = waiting.pop()
        yield from readers.get(tensor, ())
        for reader in graph.consumers.get(tensor, ()):
            if pairs.get(reader.name):
                yield reader.name
            elif reader.op in _INSIDE:
                fresh = [name for name in reader.outputs if name not in seen]
                seen.update(fresh)
                waiting += fresh


# ── what they cost ──────────────────────────────────────────────────────────────────────────────────────


def region_times(
    regions: Sequence[Region], a: EngineProfile, b: EngineProfile, threshold: float
) -> tuple[RegionTime, ...]:
    """Each region's time in the float engine `a` and the quantised one `b`; last what no region covers.

    Layers of both engines are matched by the ONNX nodes that they cover. Regions that share layers become
    one. A region loses if it takes longer by more than `threshold` (a share); one of
    which `a` has no layer cannot be compared.
    """
    home = {name: at for at, one in enumerate(regions) for name in (*one.nodes, *sorted(one.pairs))}

    def keys(layer: ProfiledLayer) -> list[str]:
        names = _nodes_of(layer)
        own = (f"region {home[name]}" if name in home else f"node {name}" for name in names)
        return [*own] or [f"layer {layer.name}"]

    matched: list[tuple[list[int], float, float]] = []
    unseen = {*range(len(regions))}
    for ours, theirs in connected(a.layers, b.layers, keys):
        own = {home[name] for layer in (*ours, *theirs) for name in _nodes_of(layer) if name in home}
        matched.append((sorted(own), _ms(ours), _ms(theirs)))
        unseen -= own
    matched += [([at], 0.0, 0.0) for at in unseen]
    inside = (
        RegionTime(
            nodes=tuple(name for at in own for name in regions[at].nodes),
            float_ms=before,
            quantised_ms=after,
            regions=len(own),
            loses=after > before * (1 + threshold) > 0,
        )
        for own, before, after in sorted(matched)
        if own
    )
    before = sum(ms for own, ms, _ in matched if not own)
    after = sum(ms for own, _, ms in matched if not own)
    return (*inside, RegionTime(nodes=(), float_ms=before, quantised_ms=after, regions=0))


def _nodes_of(layer: ProfiledLayer) -> tuple[str, ...]:
    """Its nodes; a reformat's first alone, so that it ties nothing together."""
    return layer.onnx_nodes[:1] if layer.is_reformat else layer.onnx_nodes


def _ms(layers: Iterable[ProfiledLayer]) -> float:
    return sum(layer.ms or 0.0 for layer in layers)


def losing(times: Sequence[RegionTime], total_ms: float, threshold: float) -> tuple[str, ...]:
    """The nodes that should be left in float; none if the engine's `total_ms` would gain too little by it.

    Nor any if all regions lose: the float engine is there already.
    """
    regions = [one for one in times if one.nodes]
    losers = [one for one in regions if one.loses]
    gain = sum(one.change_ms for one in losers)
    if len(losers) == len(regions) or gain <= total_ms * threshold:
        return ()
    return tuple(name for one in losers for name in one.nodes)
