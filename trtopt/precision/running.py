"""Models opened on ONNX Runtime: whole or in parts, in FP32, their weights' Q/DQ computed once."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.device.ort.reference import Unoptimised
from trtopt.files.atomic import scratch_folder, writing
from trtopt.onnxio.disk_space import check_temporary_room
from trtopt.onnxio.external_data import size_in_bytes
from trtopt.onnxio.extraction import with_nodes
from trtopt.onnxio.graph_walk import attribute, nodes_for, reads_of, refill
from trtopt.onnxio.half_emulation import is_low
from trtopt.onnxio.model_file import ModelFile, array_of, runnable
from trtopt.onnxio.shape_inference import LARGE_BYTES
from trtopt.onnxio.weights import constant_of_parts, runs_of_rows
from trtopt.precision.placement.draft import is_op
from trtopt.precision.qdq import ELEMENT, dequantize_weight, drop_unread, quantize_weight

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


_PRECISIONS = {element: precision for precision, element in ELEMENT.items() if precision != "int4"}
_MOST_HELD_BYTES = 32 << 20
"""Of weights as floats, without a spool, in messages that are copied again and again."""

_USUAL = {"block_size": 0, "output_dtype": 0, "precision": 0, "saturate": 1}
"""Default values of attributes."""


@dataclass(frozen=True)
class _Weight:
    """A constant on its way through Q and DQ, or through DQ alone."""

    source: onnx.TensorProto
    quantize: onnx.NodeProto | None
    dequantize: onnx.NodeProto


def with_weights_dequantized(model: ModelFile) -> ModelFile:
    """A copy in which constants stand for Q and DQ of weights, under the names of the DQs' outputs.

    INT8 and FP8 with zero points of 0, in the main graph, if they do not take too much. What the model
    computes is the same, but for the order of sums.
    """
    given = {item.name for item in model.proto.graph.input}  # they may replace constants
    constants = {item.name: item for item in model.proto.graph.initializer if item.name not in given}
    weights = _weights_behind_pairs(model, constants)
    taken = sum(4 * int(np.prod(one.source.dims, dtype=np.int64)) for one in weights.values())
    if not weights or (model.spool is None and taken > _MOST_HELD_BYTES):
        return model
    proto = deepcopy(model.proto)
    for name, weight in weights.items():
        proto.graph.initializer.append(_dequantized(name, weight, model, constants))
    nodes = [node for node in proto.graph.node if node.output[0] not in weights]
    read = {item.name for item in proto.graph.output}.union(*map(reads_of, nodes))
    unread = {one.quantize.output[0] for one in weights.values() if one.quantize is not None} - read
    refill(proto.graph.node, [node for node in nodes if node.output[0] not in unread])
    drop_unread(proto)
    return replace(model, proto=proto)


def _weights_behind_pairs(model: ModelFile, constants: Mapping[str, onnx.TensorProto]) -> dict[str, _Weight]:
    """By the name of what comes out of the DQ."""
    graph = model.proto.graph
    outputs, read = {item.name for item in graph.output}, set[str]().union(*map(reads_of, graph.node))
    quantizes = {
        node.output[0]: node
        for node in graph.node
        if is_op(node, "QuantizeLinear") and _is_plain(node, model, constants) and node.input[0] in constants
    }
    found = {}
    for node in graph.node:
        if not is_op(node, "DequantizeLinear") or node.output[0] not in read - outputs:
            continue
        quantize = quantizes.get(node.input[0])
        source = constants.get(node.input[0] if quantize is None else quantize.input[0])
        if source is not None and _is_plain(node, model, constants):
            found[node.output[0]] = _Weight(source, quantize, node)
    return found


def _is_plain(node: onnx.NodeProto, model: ModelFile, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether its scale is constant, its zero point 0 of INT8 or FP8, and each attribute the default."""
    if len(node.input) < 3 or not constants.keys() >= set(node.input[1:3]):
        return False
    zero = constants[node.input[2]]
    has_attributes = any(item.i != _USUAL.get(item.name, item.i) for item in node.attribute)
    return not has_attributes and zero.data_type in _PRECISIONS and not array_of(zero, model.folder).any()


def _dequantized(
    name: str, weight: _Weight, model: ModelFile, constants: Mapping[str, onnx.TensorProto]
) -> onnx.TensorProto:
    """In the type of the DQ's scale, as ONNX Runtime computes it: in FP32."""
    values = array_of(weight.source, model.folder)
    scale = array_of(constants[weight.dequantize.input[1]], model.folder)
    axis = _axis(weight.dequantize, scale)

    def part(run: Any) -> NDArray[Any]:
        rows = values[run]
        if weight.quantize is not None:
            steps = array_of(constants[weight.quantize.input[1]], model.folder)
            precision = _PRECISIONS[constants[weight.quantize.input[2]].data_type]
            along = _axis(weight.quantize, steps)
            rows = quantize_weight(rows, _of_rows(steps, along, values.ndim, run), along, precision)
        return dequantize_weight(rows, _of_rows(scale, axis, values.ndim, run), axis).astype(scale.dtype)

    parts = map(part, runs_of_rows(values))
    return constant_of_parts(parts, scale.dtype, values.shape, name, model.spool)


def _of_rows(scale: NDArray[Any], axis: int | None, rank: int, run: Any) -> NDArray[np.float32]:
    """The scales of some of a weight's rows: the same for all unless each row has its own."""
    return (scale[run] if axis is not None and axis % rank == 0 else scale).astype(np.float32)


def _axis(node: onnx.NodeProto, scale: NDArray[Any]) -> int | None:
    """The axis along which each slice has a scale of its own; ONNX's default is 1."""
    return attribute(node, "axis", 1) if scale.ndim else None
