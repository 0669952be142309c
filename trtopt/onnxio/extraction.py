"""Parts of a model as models of their own: between some tensors, or of some nodes."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy

import onnx

from trtopt.errors import InvalidModelError, UsageError
from trtopt.onnxio.graph_walk import (
    DRAWN,
    graphs_of,
    inner_nodes,
    name_of,
    names_in,
    nodes_for,
    reads_of,
    refill,
    take_name,
)
from trtopt.onnxio.shape_inference import check, declared_values

_LISTED = 5
Ends = Mapping[str, onnx.ValueInfoProto | onnx.TensorProto]
_OF_SHAPES = {"Shape", "Size"}


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


def held_by(graph: onnx.GraphProto) -> set[str]:
    """The names of the graph's weights."""
    return {item.name for item in graph.initializer} | {item.values.name for item in graph.sparse_initializer}


# ── between tensors ─────────────────────────────────────────────────────────────────────────────────────────


def extract(model: onnx.ModelProto, sources: Sequence[str], results: Sequence[str]) -> onnx.ModelProto:
    """What computes `results` from `sources`, in a sorted model; without either, its own inputs or outputs.

    New inputs and outputs are declared as inference finds them. A weight may be one of `sources`; others come
    along, and so do those that only subgraphs read. Weights' values stay where they are.
    """
    if not sources and not results:
        raise UsageError("no tensor is named to cut at", "add --from TENSOR, --to TENSOR, or both")
    graph = model.graph
    made = [name for node in graph.node for name in node.output if name]
    held = held_by(graph)
    given = [item.name for item in graph.input if item.name not in held]
    _check_names(graph, sources, [*given, *held, *made], "--from")
    _check_names(graph, results, made, "--to")
    own = [item.name for item in graph.output if item.name not in {*sources, *given}]  # not passed through
    wanted = list(dict.fromkeys(results)) or own
    if both := set(sources).intersection(wanted):
        raise UsageError(f"--from and --to {min(both)}: nothing lies between them", "name another tensor")

    cut = set(sources) or {*given}
    nodes, read = nodes_for(graph.node, wanted, cut)
    if unread := [name for name in sources if name not in read]:
        raise UsageError(
            f"--from {unread[0]}: no output of the part depends on it",
            "omit it, or add --to what reads it",
        )
    if missing := [name for name in given if name in read - cut]:
        more = " ".join(f"--from {name}" for name in missing)
        raise UsageError(
            f"the part does not begin at {', '.join(sources)} alone: it also depends on "
            f"{', '.join(map(repr, missing))}",
            f"add {more}, or name a tensor behind them",
        )

    values = declared_values(model)
    begins = list(dict.fromkeys(sources)) or [name for name in given if name in read]
    part = with_nodes(
        model,
        [*_without(cut, nodes, names_in(graph))],
        [_declared(name, values, "--from") for name in begins],
        [_declared(name, values, "--to") for name in wanted],
    )
    refill(part.graph.initializer, [item for item in part.graph.initializer if item.name not in cut])
    check(part)
    return part


def _without(cut: set[str], nodes: Sequence[onnx.NodeProto], taken: set[str]) -> Iterator[onnx.NodeProto]:
    """The nodes; one of several outputs, some of them inputs of the part, makes these by other names."""
    for node in nodes:
        own = onnx.NodeProto()
        own.CopyFrom(node)
        own.output[:] = [take_name(name, taken) if name in cut else name for name in node.output]
        yield own


def _declared(name: str, values: dict[str, onnx.ValueInfoProto], option: str) -> onnx.ValueInfoProto:
    kind = values[name].type if name in values else onnx.TypeProto()
    if kind.WhichOneof("value") is None:
        raise InvalidModelError(
            f"{option} {name}: its type is not known, as an operator that ONNX does not have computes it",
            "cut in front of that operator, or behind the next one",
        )
    return onnx.ValueInfoProto(name=name, type=kind)


def _check_names(graph: onnx.GraphProto, names: Sequence[str], known: Sequence[str], option: str) -> None:
    """Each must be a tensor of the main graph."""
    for name in names:
        if name in known:
            continue
        nodes = {name_of(node): [*node.output] for node in graph.node}
        inside = name in {one for part in [*graphs_of(graph)][1:] for one in names_in(part)}
        near = difflib.get_close_matches(name, known, n=_LISTED, cutoff=0.5)
        if name in nodes:
            raise UsageError(
                f"{option} {name}: is a node, not a tensor", f"name what it makes: {', '.join(nodes[name])}"
            )
        why = (
            "lies in a subgraph, which stays whole"
            if inside
            else "is an input or a weight of the model, which nothing computes"
            if option == "--to" and name in {item.name for item in (*graph.input, *graph.initializer)}
            else "the model has no such tensor"
        )
        raise UsageError(
            f"{option} {name}: {why}",
            f"did you mean {', '.join(map(repr, near))}?"
            if near
            else "name a tensor that a node of the main graph makes",
        )


# ── of some nodes: what the others made becomes inputs, or constants ────────────────────────────────────────


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
    outputs = [_end(name, ends, wanted.get(name)) for name in results]
    before = [*(item.name for item in graph.input), *(name for node in graph.node for name in node.output)]
    starts = [ends[name] for name in dict.fromkeys(before) if name in needed]
    part = with_nodes(model, nodes, [one for one in starts if isinstance(one, onnx.ValueInfoProto)], outputs)
    part.graph.initializer.extend(one for one in starts if isinstance(one, onnx.TensorProto))
    return part


def _end(name: str, ends: Ends, own: onnx.ValueInfoProto | None) -> onnx.ValueInfoProto:
    end = ends.get(name)
    if isinstance(end, onnx.TensorProto):
        return onnx.helper.make_tensor_value_info(name, end.data_type, list(end.dims))
    return end or own or onnx.helper.make_empty_tensor_value_info(name)


def constant_tensors(graph: onnx.GraphProto, *, fixed_shapes: bool) -> set[str]:
    """Tensors, subgraphs' too, that no input changes: made of weights, or of shapes where these are fixed."""
    known = set[str]()
    for part in graphs_of(graph):
        known |= held_by(part)
        for node in part.node:
            if any(one.op_type in DRAWN for one in inner_nodes(node)):
                continue
            if (fixed_shapes and node.op_type in _OF_SHAPES) or reads_of(node) <= known:
                known.update(filter(None, node.output))
    return known
