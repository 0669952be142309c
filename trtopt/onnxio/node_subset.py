"""A model of some nodes of another: what the others made becomes inputs, or constants."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy

import onnx

from trtopt.onnxio.graph_walk import inner_nodes, reads_of, refill

Ends = Mapping[str, onnx.ValueInfoProto | onnx.TensorProto]
_OF_SHAPES = {"Shape", "Size"}
_DRAWN = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}


def with_nodes(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    """A copy of the model with this graph, and of its initializers those that something reads."""
    part, outputs = deepcopy(model), tuple(outputs)
    read = {item.name for item in outputs}.union(*map(reads_of, nodes))
    refill(part.graph.input, inputs)
    refill(part.graph.node, nodes)
    refill(part.graph.output, outputs)
    refill(part.graph.initializer, [item for item in model.graph.initializer if item.name in read])
    del part.graph.value_info[:]
    part.ir_version = max(part.ir_version, 4)  # older ones want every initializer among the inputs
    return part


def subset_of(model: onnx.ModelProto, kept: Collection[int], ends: Ends) -> onnx.ModelProto | None:
    """The model of the nodes with these places; None where `ends` lacks a tensor to begin with.

    Its outputs are those of the model that it makes, and what only nodes that are left out read; if there is
    neither, what it makes and nothing reads. Nodes with subgraphs stay whole.
    """
    graph = model.graph
    nodes = [graph.node[place] for place in sorted(kept)]
    others = [node for place, node in enumerate(graph.node) if place not in kept]
    made = [name for node in nodes for name in node.output if name]
    read = set[str]().union(*map(reads_of, nodes))
    needed = read - set(made) - held_by(graph)
    if not needed <= ends.keys():
        return None
    wanted = {item.name: item for item in graph.output}
    read_elsewhere = set[str]().union(*map(reads_of, others)) - read
    results = [name for name in made if name in wanted or name in read_elsewhere]
    results = results or [name for name in made if name not in read]
    outputs = [_declared(name, ends, wanted.get(name)) for name in results]
    before = [*(item.name for item in graph.input), *(name for node in graph.node for name in node.output)]
    starts = [ends[name] for name in dict.fromkeys(before) if name in needed]
    part = with_nodes(model, nodes, [one for one in starts if isinstance(one, onnx.ValueInfoProto)], outputs)
    part.graph.initializer.extend(one for one in starts if isinstance(one, onnx.TensorProto))
    return part


def held_by(graph: onnx.GraphProto) -> set[str]:
    """The names of the graph's weights."""
    return {item.name for item in graph.initializer} | {item.values.name for item in graph.sparse_initializer}


def _declared(name: str, ends: Ends, own: onnx.ValueInfoProto | None) -> onnx.ValueInfoProto:
    end = ends.get(name)
    if isinstance(end, onnx.TensorProto):
        return onnx.helper.make_tensor_value_info(name, end.data_type, list(end.dims))
    return end or own or onnx.helper.make_empty_tensor_value_info(name)


def constant_tensors(graph: onnx.GraphProto, *, fixed_shapes: bool) -> set[str]:
    """Tensors whose values no input changes: made of weights, or of shapes where these are fixed."""
    known = held_by(graph)
    for node in graph.node:
        if any(one.op_type in _DRAWN for one in inner_nodes(node)):
            continue
        if (fixed_shapes and node.op_type in _OF_SHAPES) or reads_of(node) <= known:
            known.update(filter(None, node.output))
    return known
