"""Gates of squeeze-and-excitation that stay in float in a graph with Q/DQ."""

from __future__ import annotations

from trtopt.inspect.graph import DEQUANTIZE, QUANTIZE, Graph

_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax"})
_BOUNDED = frozenset({"Sigmoid", "HardSigmoid", "Clip"})
_INSIDE = _BOUNDED | {
    "Conv", "Gemm", "MatMul", "BatchNormalization", "Add", "Mul", "Div", "Relu", "LeakyRelu", "PRelu",
    "HardSwish", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Cast", "Expand",
}  # fmt: skip
_MOST = 24
"""Nodes between a pool and the product that it gates."""


def float_gates(graph: Graph) -> tuple[str, ...]:
    """Names of the nodes from each pool to the Mul that it gates; none of gates with Q/DQ inside."""
    if not any(node.op == QUANTIZE for node in graph.nodes):
        return ()
    found: dict[str, None] = {}
    for product in graph.nodes:
        if product.op != "Mul" or len(product.inputs) != 2:
            continue
        for signal, maps in (product.inputs, product.inputs[::-1]):
            found |= dict.fromkeys(_between(graph, signal, _before_pairs(graph, maps), product.name))
    return tuple(found)


def _between(graph: Graph, signal: str, maps: str, product: str) -> tuple[str, ...]:
    """The nodes from a pool over the maps to the product; none where the signal is not made of that alone."""
    passed, waiting, ops = dict[str, None](), [signal], set[str]()
    while waiting:
        node = graph.producer.get(waiting.pop())
        if node is None or len(passed) > _MOST:
            return ()
        is_pool = node.op in _POOLS and _before_pairs(graph, node.inputs[0]) == maps
        if not is_pool and node.op not in _INSIDE:
            return ()
        if node.name not in passed and not is_pool:
            waiting += [name for name in node.inputs if name and not graph.is_constant(name)]
        passed[node.name] = None
        ops.add(node.op)
    return (*passed, product) if ops & _POOLS and ops & _BOUNDED else ()


def _before_pairs(graph: Graph, tensor: str) -> str:
    """What a tensor is in front of Q and DQ."""
    while (node := graph.producer.get(tensor)) is not None and node.op in (QUANTIZE, DEQUANTIZE):
        tensor = node.inputs[0]
    return tensor
