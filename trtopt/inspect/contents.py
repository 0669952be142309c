"""What is in an ONNX model: operators, weights and what a run costs, from its graph without its weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING

from trtopt.inspect.costs import macs_of
from trtopt.inspect.graph import DEQUANTIZE, read_graph
from trtopt.onnxio.external_data import size_in_bytes, tensors_of
from trtopt.onnxio.graph_walk import OWN_DOMAINS, DisjointNames, opset_of, parts_of, reads_of, real_inputs
from trtopt.onnxio.model_info import dtype_name, tensor_spec
from trtopt.onnxio.prepare import inline_functions
from trtopt.records import ModelContents, Shape, Subgraph, WeightGroup

if TYPE_CHECKING:
    import onnx

    from trtopt.onnxio.model_file import ModelFile


def contents_of(file: ModelFile, shapes: Mapping[str, Shape]) -> ModelContents:
    """What is in a model; its work is counted with its inputs at these shapes."""
    model = file.proto
    parts = [*parts_of(model)]
    operators = Counter(
        node.op_type if node.domain in OWN_DOMAINS else f"{node.domain}::{node.op_type}"
        for part in parts
        for node in part.node
    )
    graph = read_graph(inline_functions(model), shapes)
    dequantised = {graph.dtypes.get(node.inputs[0], "") for node in graph.nodes if node.op == DEQUANTIZE}
    return ModelContents(
        opset=opset_of(model),
        ir_version=model.ir_version,
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        domains={one.domain: one.version for one in model.opset_import if one.domain not in OWN_DOMAINS},
        inputs=tuple(map(tensor_spec, real_inputs(model.graph))),
        outputs=tuple(map(tensor_spec, model.graph.output)),
        nodes=operators.total(),
        operators=dict(operators.most_common()),
        functions=tuple(one.name for one in model.functions),
        subgraphs=len(parts) - 1 - len(model.functions),
        weights=tuple(_weights_of(model)),
        weight_files=tuple(one.name for one in file.files[1:]),
        qdq_types=tuple(sorted(dequantised - {""})),
        macs=macs_of(graph),
        shapes=dict(shapes),
    )


def _weights_of(model: onnx.ModelProto) -> Iterator[WeightGroup]:
    """The largest first."""
    tensors: dict[str, list[tuple[int, int]]] = {}
    for one in tensors_of(model):
        size = size_in_bytes(one)
        tensors.setdefault(dtype_name(one.data_type), []).append((prod(one.dims), size))
    for dtype, sizes in sorted(tensors.items(), key=lambda item: -sum(size for _, size in item[1])):
        elements, nbytes = map(sum, zip(*sizes, strict=True))
        yield WeightGroup(dtype=dtype, tensors=len(sizes), elements=elements, size_bytes=nbytes)


# ── what a target can take of it: the parts between the nodes that it cannot ────────────────────────────────


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
