"""Names that no other node and no other graph of the model has, so that a name is unambiguous."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

import onnx

from trtopt.onnxio.graph_walk import graphs_of, subgraphs_of


def name_apart(graph: onnx.GraphProto) -> None:
    """Give every node, and every tensor of a subgraph, a name of its own, in place.

    A trace and TensorRT's layers need names of nodes. Branches of an If may call their tensors alike, which
    would be one tensor to all that keeps a table by name; what is called so first keeps its name.
    """
    name_nodes(graph)
    _name_tensors(graph, {}, set(), names_in(graph))


def _usual_name(node: onnx.NodeProto) -> str:
    return node.name or f"{node.op_type}:{next(filter(None, node.output), '')}"


def name_nodes(graph: onnx.GraphProto, like: Callable[[onnx.NodeProto], str] = _usual_name) -> None:
    """Give every node, those of subgraphs included, the name that `like` tells, or that with a number."""
    nodes = [node for inner in graphs_of(graph) for node in inner.node]
    taken: set[str] = set()
    counts: Counter[str] = Counter()
    for node in nodes:
        wanted = name = like(node)
        while name in taken:
            counts[wanted] += 1
            name = f"{wanted}_{counts[wanted]}"
        node.name = name
        taken.add(name)


def unused_name(like: str, taken: Collection[str]) -> str:
    """`like`, or with a number behind it, so that it is none of `taken`."""
    name, count = like, 0
    while name in taken:
        count += 1
        name = f"{like}_{count}"
    return name


def names_in(graph: onnx.GraphProto) -> set[str]:
    """The names of all tensors, those of subgraphs included."""
    return {name for part in graphs_of(graph) for name in _made_in(part)}


def _made_in(graph: onnx.GraphProto) -> Iterator[str]:
    """The tensors that are the graph's own."""
    yield from (item.name for item in (*graph.input, *graph.initializer))
    yield from (item.values.name for item in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)


def _name_tensors(graph: onnx.GraphProto, outer: Mapping[str, str], seen: set[str], taken: set[str]) -> None:
    """Rename the graph's own tensors that are in `seen`; `outer` has the new names of those around it."""
    own: dict[str, str] = {}
    for name in dict.fromkeys(_made_in(graph)):
        own[name] = unused_name(name, taken) if name in seen else name
        taken.add(own[name])
    seen |= own.keys() | own.values()
    names = {**outer, **own}
    if any(old != new for old, new in names.items()):
        _rename(graph, names)
    for node in graph.node:
        for inner in subgraphs_of(node):
            _name_tensors(inner, names, seen, taken)


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Write the new names, but for those inside the nodes' subgraphs."""
    for item in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        item.name = names.get(item.name, item.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)
    for item in graph.quantization_annotation:
        item.tensor_name = names.get(item.tensor_name, item.tensor_name)
        for entry in item.quant_parameter_tensor_names:
            entry.value = names.get(entry.value, entry.value)
    for node in graph.node:
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]
