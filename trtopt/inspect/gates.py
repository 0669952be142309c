"""Gates of squeeze-and-excitation that stay in float in a graph with Q/DQ."""

from __future__ import annotations

from trtopt.inspect.graph import DEQUANTIZE, QUANTIZE, Graph

_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax"})
_BOUNDED = frozenset({"Sigmoid", "HardSigmoid", "Clip"})
_MOST = 24
"""Nodes between a pool and the product that it gates."""


def float_gates(graph: Graph) -> tuple[str, ...]:
    """Names of the nodes from each pool to the Mul that it gates; none of gates with Q/DQ inside."""
    if not any(node.op == QUANTIZE for node in graph.nodes):
        return ()
    found: dict[str, None] = {}
    for product in graph.nodes:
        for signal in product.inputs if product.op == "Mul" else ():
            maps = {_before_pairs(graph, name) for name in product.inputs if name != signal}
            if own := _from_pool(graph, signal, maps):
                found |= dict.fromkeys((*own, product.name))
    return tuple(found)


def _from_pool(graph: Graph, signal: str, maps: set[str]) -> tuple[str, ...]:
    """The nodes that make a bounded signal of a pool over the maps, and of nothing else; else none."""
    passed, waiting, ops = dict[str, None](), [signal], set[str]()
    while waiting:
        node = graph.producer.get(waiting.pop())
        if node is None or node.op in (QUANTIZE, DEQUANTIZE) or len(passed) > _MOST:
            return ()
        is_pool = node.op in _POOLS and _before_pairs(graph, node.inputs[0]) in maps
        if node.name not in passed and not is_pool:
            waiting += [name for name in node.inputs if name and not graph.is_constant(name)]
        passed[node.name] = None
        ops.add(node.op)
    return tuple(passed) if ops & _POOLS and ops & _BOUNDED else ()


def _before_pairs(graph: Graph, tensor: str) -> str:
    """What a tensor is in front of Q and DQ."""
    while (node := graph.producer.get(tensor)) is not None and node.op in (QUANTIZE, DEQUANTIZE):
        tensor = node.inputs[0]
    return tensor
