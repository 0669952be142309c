"""Models opened on ONNX Runtime: whole or in parts, in FP32, their weights' Q/DQ computed once."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from trtopt.device.ort.reference import Unoptimised
from trtopt.files.atomic import scratch_folder, writing
from trtopt.onnxio.disk_space import check_temporary_room
from trtopt.onnxio.external_data import size_in_bytes
from trtopt.onnxio.extraction import with_nodes
from trtopt.onnxio.graph_walk import nodes_for, reads_of, refill
from trtopt.onnxio.half_emulation import in_fp32, is_low
from trtopt.onnxio.model_file import ModelFile, runnable
from trtopt.onnxio.shape_inference import LARGE_BYTES
from trtopt.onnxio.weights import constant as weight_of, dtype_of
from trtopt.precision.placement.draft import is_op
from trtopt.precision.qdq import drop_unread

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
    nodes, needed = nodes_for(model.graph.node, names, given)
    default = {item.name for item in model.graph.initializer}
    inputs = [item for item in model.graph.input if item.name in needed or item.name not in default]
    part = with_nodes(model, nodes, inputs, map(onnx.helper.make_empty_tensor_value_info, names))
    return part, sorted(needed & given)


def casting_bytes(model: ModelFile) -> int:
    """Bytes at most: weights in 16 bits, twice in a search, in FP32 to compare, and before if in 16."""
    return _wide_bytes(model.proto) * (3 if is_low(model.proto) else 2)


def quantizing_bytes(model: ModelFile) -> int:
    """Bytes at most: the weights rewritten, smoothed, in 16 bits, and what Q/DQ make of them."""
    return _wide_bytes(model.proto) * (5 if is_low(model.proto) else 4)


def opening_bytes(model: ModelFile) -> int:
    """Bytes at most: 16-bit weights in FP32, and behind Q and DQ in the type of their scales before."""
    has_pairs = any(node.op_type == "DequantizeLinear" for node in model.proto.graph.node)
    wide = _wide_bytes(model.proto)
    if is_low(model.proto):
        return wide * 3 // 2 if has_pairs else wide
    return wide if has_pairs else 0


@contextmanager
def passing(model: ModelFile) -> Iterator[ModelFile]:
    """The model with a spool that goes when the block ends: what is mapped from it stays readable.

    It lies in the model's own or, if that has none, in the system's temporary folder.
    """
    if model.spool is None:
        check_temporary_room(opening_bytes(model))
        with scratch_folder() as folder:
            yield replace(model, spool=folder)
        return
    with writing(model.spool):
        held = tempfile.TemporaryDirectory(dir=model.spool, ignore_cleanup_errors=True)
    with held as name:
        yield replace(model, spool=Path(name))


def _wide_bytes(model: onnx.ModelProto) -> int:
    """What large weights take in FP32."""
    sizes = (4 * math.prod(item.dims) for item in model.graph.initializer)
    return sum(size for size in sizes if size >= LARGE_BYTES)


# What Q and DQ make of weights, computed once: ONNX Runtime, unoptimised, does it at every run.
#
# For a sample of ViT-B/16 quantising 86 million weights took 2.3 s on two cores, dequantising them 0.5, and
# all of its products 0.2.


_MOST_HELD_BYTES = 32 << 20
"""Of weights as floats, without a spool, in messages that are copied again and again."""


def with_weights_dequantized(model: ModelFile) -> ModelFile:
    """A copy in which constants stand for Q and DQ of weights, under the names of the DQs' outputs.

    Only in the main graph, if they do not take too much. What the model computes is the same, but for the
    order of sums.
    """
    graph = model.proto.graph
    given = {item.name for item in graph.input}  # may replace a constant
    sources = {item.name: item for item in graph.initializer if item.name not in given}
    constant: dict[str, onnx.NodeProto] = {}
    for node in graph.node:
        if is_op(node, "QuantizeLinear", "DequantizeLinear") and sources.keys() >= {*node.input} - {""}:
            constant[node.output[0]] = node
            sources[node.output[0]] = sources[node.input[0]]
    others = [node for node in graph.node if node.output[0] not in constant]
    read = set[str]().union(*map(reads_of, others)) - {item.name for item in graph.output}
    weights = [name for name in constant if name in read and is_op(constant[name], "DequantizeLinear")]
    taken = sum(4 * math.prod(sources[name].dims) for name in weights)
    if not weights or (model.spool is None and taken > _MOST_HELD_BYTES):
        return model
    proto = deepcopy(model.proto)
    for name in weights:
        nodes, end = nodes_for(constant.values(), [name])[0], onnx.helper.make_empty_tensor_value_info(name)
        part = replace(model, proto=with_nodes(model.proto, nodes, (), [end]), spool=None)
        value = np.zeros(sources[name].dims, dtype_of(sources[constant[name].input[1]].data_type))
        if value.size:  # ONNX Runtime has no Q of nothing, and none of BF16
            value = open_proto(model, in_fp32(part).proto).run({})[name]
        proto.graph.initializer.append(weight_of(value, name, model.spool))
    left = [node for node in graph.node if node.output[0] not in weights]
    wanted = {item.name for item in graph.output}.union(*(node.output for node in others))
    refill(proto.graph.node, nodes_for(left, wanted)[0])
    drop_unread(proto)
    return replace(model, proto=proto)
