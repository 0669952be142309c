"""Parts of a model, opened to run: one that makes certain tensors, or stages that run one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import onnx

from trtopt.device.ort.reference import Unoptimised
from trtopt.onnxio.graph_walk import reads_of
from trtopt.onnxio.model_file import ModelFile, runnable, size_in_bytes

_PREPACK_BYTES = 256 << 20
"""The most that weights may take to be held a second time, in the order that kernels like best."""


@dataclass(frozen=True)
class Stage:
    """A part of a model whose graph takes `reads`, by which all of `names` are there.

    `later` are the tensors made by then that later stages need, besides the model's inputs.
    """

    proto: onnx.ModelProto
    names: tuple[str, ...]
    reads: frozenset[str]
    later: frozenset[str]


def cut(
    model: onnx.ModelProto, shards: Sequence[Sequence[str]], types: Mapping[str, int]
) -> tuple[Stage, ...]:
    """One stage for each of the `shards`, which hold names of tensors in the order of the graph.

    No node is in two stages, unless `types`, element types by name, lacks a tensor that would be handed on.
    """
    nodes = model.graph.node
    made_at = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    known = {
        index for index, node in enumerate(nodes) if all(types.get(name) for name in node.output if name)
    }
    inputs = {item.name for item in model.graph.input}
    ends = [-1]
    for shard in shards:
        ends.append(max([ends[-1], *(made_at[name] for name in shard if name in made_at)]))
    stages: list[Stage] = []
    later: frozenset[str] = frozenset()
    for names, end in zip(reversed(shards), reversed(ends[:-1]), strict=True):
        before = {name for name, index in made_at.items() if index <= end and index in known}
        wanted = dict.fromkeys((*names, *sorted(later)))
        part, read = _part(
            model, [name for name in wanted if name not in before and name not in inputs], before
        )
        for name in read:
            part.graph.input.append(onnx.helper.make_tensor_value_info(name, types[name], None))
        stages.append(Stage(part, tuple(names), frozenset((*inputs, *read)), later))
        later = frozenset(before.intersection((*read, *wanted)))
    return tuple(reversed(stages))


def part_of(model: ModelFile, names: Sequence[str]) -> Unoptimised:
    """The part of the model that makes `names`, with just these as its outputs."""
    return open_proto(model, _part(model.proto, names, frozenset())[0])


def open_proto(model: ModelFile, proto: onnx.ModelProto) -> Unoptimised:
    """`proto` with the large weights of `model`, of which it may be a part."""
    prepack = sum(map(size_in_bytes, model.proto.graph.initializer)) <= _PREPACK_BYTES
    return Unoptimised(*runnable(replace(model, proto=proto)), prepack=prepack)


def _part(model: onnx.ModelProto, names: Sequence[str], given: Set[str]) -> tuple[onnx.ModelProto, list[str]]:
    """The nodes that `names` need where the tensors in `given` are there, and which of these they read."""
    needed, nodes = set(names), []
    for node in reversed(model.graph.node):
        if not needed.isdisjoint(node.output) and given.isdisjoint(node.output):
            nodes.append(node)
            needed |= reads_of(node)
    part = onnx.ModelProto()
    part.CopyFrom(model)
    graph = part.graph
    default = {item.name for item in graph.initializer}
    inputs = [item for item in graph.input if item.name in needed or item.name not in default]
    for field in (graph.input, graph.node, graph.initializer, graph.value_info, graph.output):
        del field[:]
    graph.input.extend(inputs)
    graph.node.extend(reversed(nodes))
    graph.initializer.extend(item for item in model.graph.initializer if item.name in needed)
    graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    return part, sorted(needed & given)
