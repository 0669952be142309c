"""Existing Q/DQ of a model, as quantisation-aware training writes them.

They are taken out and recorded, the rules then decide as for any model, and the recorded pairs are put back.
Existing pairs keep their scales, and pairs that the rules require are added. Doubled pairs and those between
a convolution and its Pad are removed. A node that only moves a weight's values between its DQ and its reader,
such as Transpose or Reshape, is folded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.errors import UsageError
from trtopt.onnxio.graph_walk import OWN_DOMAINS, attribute, reads_of, refill, rename_uses, take_name
from trtopt.onnxio.model_file import ModelFile, array_of
from trtopt.onnxio.weights import constant
from trtopt.precision.calibrate import QuantizationJob
from trtopt.precision.placement.draft import (
    ACTIVATIONS,
    RESHAPES,
    Edge,
    Plan,
    Precision,
    View,
    WeightEdge,
    is_op,
)
from trtopt.precision.placement.place import place
from trtopt.precision.placement.products import is_own_gate
from trtopt.precision.qdq import ELEMENT, LARGEST, Scales, dequantize_weight

_KINDS = {element: precision for precision, element in ELEMENT.items()}
_Q, _DQ = "QuantizeLinear", "DequantizeLinear"
_PASSES = ("Transpose", "Identity")
_WEIGHTS = (onnx.TensorProto.INT8, onnx.TensorProto.FLOAT8E4M3FN)
_BIAS = onnx.TensorProto.INT32


@dataclass
class Existing:
    """What was taken out: amax by (node, input) of activations, scales by (node, input) of weights.

    `tensors` gives the amax by tensor, for readers that had no pair; `pairs` counts what was there, `inner`
    the readings inside subgraphs, where no Q/DQ is put back.
    """

    precision: Precision | None = None
    edges: dict[tuple[str, int], float] = field(default_factory=dict)
    weights: dict[tuple[str, int], NDArray[np.float32]] = field(default_factory=dict)
    axes: dict[tuple[str, int], int | None] = field(default_factory=dict)
    tensors: dict[str, float] = field(default_factory=dict)
    pairs: int = 0
    inner: int = 0

    def __bool__(self) -> bool:
        return self.pairs > 0


@dataclass(frozen=True)
class _Pair:
    """What is read through Q and DQ, a tensor or a constant, and the scales, perhaps along an axis."""

    source: str
    scale: NDArray[np.float32]
    axis: int | None


def is_quantized(model: onnx.ModelProto) -> bool:
    """Whether the main graph has Q or DQ nodes."""
    return any(node.op_type in (_Q, _DQ) for node in model.graph.node)


def take_out(file: ModelFile) -> Existing:
    """Remove every Q/DQ pair from the main graph, in place, and return their places and scales.

    Tensors of subgraphs have names of their own: see `name_apart`.
    """
    model = file.proto
    _check_domains(model)
    pairs, kinds = _pairs(file)
    if not pairs:
        return Existing()
    if len(kinds) > 1:
        raise UsageError("the model mixes Q/DQ of several types", "quantise the float model instead")
    (precision,) = kinds
    found = Existing(precision, pairs=len(pairs))
    weights = _folded(file, pairs)
    _check_one_scale(model, pairs)
    for node in model.graph.node:
        if node.op_type in (_Q, _DQ):
            continue
        for index, name in enumerate(node.input):
            if name in weights:
                found.weights[node.name, index] = weights[name].scale
                found.axes[node.name, index] = weights[name].axis
            elif name in pairs and node.op_type not in _PASSES:
                amax = float(pairs[name].scale.max()) * LARGEST[precision]
                found.edges[node.name, index] = amax
                found.tensors.setdefault(_root(pairs, name), amax)
        found.inner += len(pairs.keys() & (reads_of(node) - set(node.input)))
    _bypass(model.graph, {dq: _root(pairs, dq) for dq in pairs})
    return found


def _check_domains(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type in (_Q, _DQ) and node.domain not in OWN_DOMAINS:
            raise UsageError(
                f"node {node.name!r} is a {node.op_type} of {node.domain}, which TensorRT does not know",
                "export with ONNX's own Q/DQ (ONNX Runtime's quantiser: without UseQDQContribOps), "
                "or quantise the float model",
            )


def _check_one_scale(model: onnx.ModelProto, pairs: Mapping[str, _Pair]) -> None:
    """What is no constant is an activation, whose channels must share one scale."""
    constants = {tensor.name for tensor in model.graph.initializer}
    for dq, pair in pairs.items():
        root = _root(pairs, dq)
        if root not in constants and np.ptp(pair.scale) > 0:
            raise UsageError(
                f"the Q/DQ of activation {root!r} has {pair.scale.size} scales, one a channel",
                "TensorRT takes one scale an activation: train with per-tensor activation ranges, "
                "or quantise the float model",
            )


def _pairs(file: ModelFile) -> tuple[dict[str, _Pair], set[Precision]]:
    """By each DQ's output its pair, and the types of all.

    What is stored as integers with a DQ alone becomes floats, in place. Exporters of trained models, and ONNX
    Runtime's quantiser, keep weights so, as INT8 or FP8, and biases, as INT32. A weight n becomes n·s, which
    a Q of the DQ's scale s would make n again: one for each scale that it is read by. A bias, which TensorRT
    takes in float only, becomes b·s without a pair.
    """
    graph = file.proto.graph
    maker = {name: node for node in graph.node for name in node.output}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    taken = {name for node in graph.node for name in (*node.input, *node.output)} | constants.keys()
    pairs: dict[str, _Pair] = {}
    kinds: set[Precision] = set()
    floats: dict[tuple[str, ...], str] = {}
    biases: set[str] = set()
    for node in graph.node:
        if node.op_type == _Q:
            _check_read_by_dq_alone(graph, node.output[0], node)
        if node.op_type != _DQ:
            continue
        axis, stored = attribute(node, "axis", 1), _stored(node, constants)
        if stored is None:
            source, scale, kind = _behind_q(node, maker.get(node.input[0]), constants, file.folder)
        elif stored.data_type == _BIAS:
            graph.initializer.append(_in_float(file, node, stored, constants, node.output[0]))
            biases.add(node.output[0])
            continue
        else:
            scale, kind = _scale_of(node, constants, file.folder, stored.data_type)
            reading = (*node.input, str(axis))
            if reading not in floats:
                _check_read_by_dq_alone(graph, stored.name, node)
                floats[reading] = take_name(f"{stored.name}:float", taken)
                graph.initializer.append(_in_float(file, node, stored, constants, floats[reading]))
            source = floats[reading]
        pairs[node.output[0]] = _Pair(source, scale, axis if scale.size > 1 else None)
        kinds.add(_KINDS[kind])
    stored_weights = {name for name, *_ in floats}
    refill(graph.node, [node for node in graph.node if biases.isdisjoint(node.output)])
    refill(graph.initializer, [item for item in graph.initializer if item.name not in stored_weights])
    return pairs, kinds


def _stored(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> onnx.TensorProto | None:
    """The weight or bias that a DQ reads unchanged; blocks of INT4 are none."""
    stored = constants.get(node.input[0])
    if stored is None or node.input[1] not in constants or attribute(node, "block_size"):
        return None
    return stored if stored.data_type in (*_WEIGHTS, _BIAS) else None


def _in_float(
    file: ModelFile,
    node: onnx.NodeProto,
    stored: onnx.TensorProto,
    constants: Mapping[str, onnx.TensorProto],
    name: str,
) -> onnx.TensorProto:
    """What a DQ makes of a stored constant, n·s, as a constant."""
    steps = array_of(constants[node.input[1]], file.folder).astype(np.float32)
    axis = attribute(node, "axis", 1) if steps.size > 1 else None
    return constant(dequantize_weight(array_of(stored, file.folder), steps, axis), name, file.spool)


def _behind_q(
    node: onnx.NodeProto,
    quantize: onnx.NodeProto | None,
    constants: Mapping[str, onnx.TensorProto],
    folder: Path,
) -> tuple[str, NDArray[np.float32], int]:
    """What is in front of a DQ's Q, and the scale and the type that both have."""
    if quantize is None or quantize.op_type != _Q:
        raise UsageError(
            f"node {node.name!r} reads no QuantizeLinear: its weight is stored in a narrow type",
            "quantise the float model; a graph in its final form needs no quantising",
        )
    # without a zero point a Q makes its attribute's type, from opset 21 on, or UINT8
    named = attribute(quantize, "output_dtype") or onnx.TensorProto.UINT8
    scale, kind = _scale_of(quantize, constants, folder, named)
    again, _ = _scale_of(node, constants, folder, kind)
    if not np.array_equal(scale, again):
        raise UsageError(f"nodes {quantize.name!r} and {node.name!r} have different scales", "train again")
    return quantize.input[0], scale, kind


def _check_read_by_dq_alone(graph: onnx.GraphProto, narrow: str, node: onnx.NodeProto) -> None:
    if any(value.name == narrow for value in graph.output):
        does = "makes" if node.op_type == _Q else "reads"
        raise UsageError(
            f"output {narrow!r} is what node {node.name!r} ({node.op_type}) {does}, without a DQ behind it",
            "export with plain Q/DQ pairs and float outputs, or quantise the float model",
        )
    for reader in graph.node:
        if narrow in reads_of(reader) and reader.op_type != _DQ:
            raise UsageError(
                f"node {reader.name!r} ({reader.op_type}) reads {narrow!r} between Q and DQ",
                "export with plain Q/DQ pairs (no QLinear or integer operators)",
            )


def _scale_of(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], folder: Path, default: int
) -> tuple[NDArray[np.float32], int]:
    """A Q's or DQ's scale and element type, which is `default` where it has no zero point."""
    zero = constants.get(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    kind = zero.data_type if zero is not None else default
    if kind not in _KINDS:
        how = "has no zero point, so that it quantises to" if zero is None else "quantises to"
        raise UsageError(
            f"node {node.name!r} {how} {onnx.TensorProto.DataType.Name(kind)}",
            "TensorRT takes symmetric INT8 (an INT8 zero point of 0): export so, or quantise the float model",
        )
    if zero is not None and array_of(zero, folder).astype(np.float32).any():
        raise UsageError(
            f"node {node.name!r} has a zero point that is not 0",
            "TensorRT takes symmetric Q/DQ only: train with symmetric ranges, or quantise the float model",
        )
    if node.input[1] not in constants:
        raise UsageError(
            f"node {node.name!r} computes its scale at run time", "fold constants first: trtopt rewrite"
        )
    scale = array_of(constants[node.input[1]], folder).astype(np.float32)
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise UsageError(f"node {node.name!r} has a scale that is not above 0", "quantise the float model")
    return scale, kind


def _root(pairs: Mapping[str, _Pair], tensor: str) -> str:
    """The tensor in front of one or several pairs in a row."""
    while tensor in pairs:
        tensor = pairs[tensor].source
    return tensor


def _folded(file: ModelFile, pairs: Mapping[str, _Pair]) -> dict[str, _Pair]:
    """Weights by the name under which they are read behind their pairs, and behind nodes that move numbers.

    Such a node, also one in front of a pair, becomes a constant of its output's name, in place, if each
    channel's numbers stay together.
    """
    graph, view = file.proto.graph, View(file.proto)
    constants = {tensor.name: tensor for tensor in graph.initializer}
    sources = {pair.source for pair in pairs.values()}
    found: dict[str, _Pair] = {}
    kept = []
    for node in graph.node:
        name, source = next(iter(node.output), ""), next(iter(node.input), "")
        is_move = is_op(node, "Transpose", *RESHAPES) and name not in view.outputs
        if name in pairs and _root(pairs, name) in constants:
            tensor, axis = constants[_root(pairs, name)], pairs[name].axis
            axis = None if axis is None else axis % len(tensor.dims)
            found[name] = _Pair(tensor.name, pairs[name].scale, axis)
        elif is_move and (source in found or (source in constants and name in sources)):
            weight = found.get(source, _Pair(source, np.ones((), np.float32), None))
            values = array_of(constants[weight.source], file.folder)
            moved = _moved(node, values, weight, view.shape(name))
            if moved is not None:
                constants[name] = constant(np.ascontiguousarray(moved[0]), name, file.spool)
                graph.initializer.append(constants[name])
                if source in found:
                    found[name] = _Pair(name, weight.scale, moved[1])
                continue
        kept.append(node)
    refill(graph.node, kept)
    return found


def _moved(
    node: onnx.NodeProto, values: NDArray[Any], weight: _Pair, shape: tuple[int | None, ...] | None
) -> tuple[NDArray[Any], int | None] | None:
    """The weight behind the node, and where the axis of its scales went; None if it is nowhere any more."""
    axis = weight.axis
    if weight.scale.ndim > 1:  # blocks
        return None
    if node.op_type == "Transpose":
        perm = attribute(node, "perm", list(range(values.ndim))[::-1])
        return values.transpose(perm), None if axis is None else perm.index(axis)
    sizes = [size for size in shape or () if size is not None]
    if shape is None or len(sizes) < len(shape):
        return None
    if axis is None:
        return values.reshape(sizes), None
    # the axis is the one of its size with as many numbers outside of it as before
    outside, size = math.prod(values.shape[:axis]), values.shape[axis]
    fits = [i for i, other in enumerate(sizes) if other == size and math.prod(sizes[:i]) == outside]
    return (values.reshape(sizes), fits[0]) if fits else None


def _bypass(graph: onnx.GraphProto, replacement: Mapping[str, str]) -> None:
    """Take the pairs out: who reads behind one reads in front of it, inside subgraphs too."""
    outputs = {value.name for value in graph.output}
    nodes = []
    for node in graph.node:
        if node.op_type not in (_Q, _DQ):
            nodes.append(node)
        elif node.op_type == _DQ and (name := node.output[0]) in outputs:
            nodes.append(onnx.helper.make_node("Identity", [replacement[name]], [name], node.name))
    refill(graph.node, nodes)
    rename_uses(graph, replacement, makers=False)


# A plan for a model that brought Q/DQ along: what training placed stays, what it missed is added.


_OURS = {"residual", "pad"}
"""Where our rules replace what was there: Q/DQ on both branches of an Add, or behind a Pad, cost a kernel."""
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add")


def complete(view: View, job: QuantizationJob, existing: Existing) -> tuple[Plan, Scales, list[str]]:
    """The rules' plan for the layers that training quantised, with the model's own pairs kept.

    Edges are identified by (node, input). An edge that a rule adds takes the scale that the same tensor, or
    one that shares its scale, has already; those of tensors that have none are left out, unless there is data
    to calibrate them on. With the scales that the model brings along, and what to say of it.
    """
    trained = frozenset(node for node, _ in (*existing.edges, *existing.weights))
    plan = place(view, replace(job, trained=trained))
    rules = {item.node: item.rule for item in plan.quantized}
    ours = {(edge.node, edge.index) for edge in plan.edges}
    behind_pads = {name for node in view.nodes if rules.get(node.name) == "pad" for name in node.output}
    excluded = {node.name for node in view.nodes if job.excludes(node)}
    tensors = {(node.name, i): name for node in view.nodes for i, name in enumerate(node.input)}
    kept = [
        Edge(tensors[key], *key)
        for key in existing.edges
        if key not in ours and key[0] not in excluded
        if rules.get(key[0]) not in _OURS and tensors[key] not in behind_pads
        if not _is_inside_a_kernel(view, tensors[key], key[0], rules.keys())
    ]
    known = _known_ranges(plan, existing)
    edges = tuple(e for e in plan.edges if job.has_ranges or e.tensor in known or e.tensor in plan.fixed)
    unknown = tuple(name for name in plan.tensors if name not in known)
    turned = tuple(item.node for item in plan.weights if _is_turned(item, existing))
    weights = tuple(
        WeightEdge(item.node, item.index, existing.axes.get((item.node, item.index), item.axis))
        for item in plan.weights
    )
    added = sum((edge.node, edge.index) not in existing.edges for edge in edges)
    planned = {(item.node, item.index) for item in weights}
    dropped = sum(key not in ours for key in existing.edges) - len(kept)
    dropped += len(existing.weights.keys() - planned) + existing.inner
    order = view.order
    ordered = tuple(sorted((*edges, *kept), key=lambda edge: (order[edge.node], edge.index)))
    plan = replace(plan, edges=ordered, weights=weights)
    notes = [
        f"the model's own {existing.pairs} Q/DQ pairs are kept with their scales: "
        f"{added} edges added, {dropped} taken out"
    ]
    if turned:
        notes.append(
            f"{len(turned)} weights have scales along another axis than their output channels', "
            f"such as that of {turned[0]!r}: INT8 kernels scale output channels, so such a layer "
            "may run in float or not build; train with scales along those, or quantise the float model"
        )
    if unknown and not job.has_ranges:
        notes.append(
            f"{len(unknown)} more tensors should carry Q/DQ, such as {unknown[0]!r}: "
            "give --data DATA to find their ranges"
        )
    return plan, Scales(known, existing.edges, existing.weights), notes


def _is_turned(item: WeightEdge, existing: Existing) -> bool:
    """Whether the model's own scales of a weight lie along another axis than a kernel's result has them."""
    axis = existing.axes.get((item.node, item.index))
    return None not in (axis, item.axis) and axis != item.axis


def _is_inside_a_kernel(view: View, tensor: str, reader: str, quantized: Set[str]) -> bool:
    """Whether the tensor lies between a quantised layer, or its Add, and the activation that fuses with it.

    x·Sigmoid(x) is such an activation: Q/DQ inside it would part it from its convolution.
    """
    node, maker = view.nodes[view.order[reader]], view.maker.get(tensor)
    if maker is None or not (is_op(node, *ACTIVATIONS) or is_own_gate(view, node)):
        return False
    if is_op(maker, *ACTIVATIONS):
        return _is_inside_a_kernel(view, maker.input[0], maker.name, quantized)
    return maker.name in quantized and is_op(maker, *_LAYERS)


def _known_ranges(plan: Plan, existing: Existing) -> dict[str, float]:
    """amax by tensor, also of tensors that share a scale with one that has it."""
    known = dict(existing.tensors)
    for group in plan.groups:
        amax = max((known[name] for name in group if name in known), default=None)
        if amax is not None:
            known |= dict.fromkeys(group - known.keys(), amax)
    return known
