"""The part of a model between some of its tensors, as a model of its own."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

import onnx

from trtopt.errors import InvalidModelError, UsageError
from trtopt.onnxio.graph_walk import graphs_of, name_of, names_in, reads_of, refill, take_name
from trtopt.onnxio.node_subset import held_by, with_nodes
from trtopt.onnxio.shape_inference import check, declared_values

_LISTED = 5


def extract(model: onnx.ModelProto, sources: Sequence[str], results: Sequence[str]) -> onnx.ModelProto:
    """What computes `results` from `sources`; without either, the model's own inputs or outputs.

    New inputs and outputs are declared as inference finds them. A weight may be one of `sources`; others come
    along, and so do those that only subgraphs read. Weights' values stay where they are.
    """
    if not sources and not results:
        raise UsageError("no tensor is named to cut at", "add --from TENSOR, --to TENSOR, or both")
    graph = model.graph
    makers = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    held = held_by(graph)
    given = [item.name for item in graph.input if item.name not in held]
    _check_names(graph, sources, [*given, *held, *makers], "--from")
    _check_names(graph, results, [*makers], "--to")
    own = [item.name for item in graph.output if item.name not in {*sources, *given}]  # not passed through
    wanted = list(dict.fromkeys(results)) or own
    if both := set(sources).intersection(wanted):
        raise UsageError(f"--from and --to {min(both)}: nothing lies between them", "name another tensor")

    cut, nodes, read = set(sources) or {*given}, set[int](), set[str]()
    reached = list(wanted)
    while reached:
        name = reached.pop()
        if name in read:
            continue
        read.add(name)
        if name in makers and name not in cut and makers[name] not in nodes:
            nodes.add(makers[name])
            reached += sorted(reads_of(graph.node[makers[name]]))
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
        [*_without(cut, [graph.node[place] for place in sorted(nodes)], names_in(graph))],
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
