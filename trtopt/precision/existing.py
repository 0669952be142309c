"""Q/DQ that a model brings along, as quantisation-aware training writes them.

They are taken out and remembered, the rules then decide as for any model, and what was remembered is put
back: pairs that were there stay with their scales, pairs that a rule misses are added, doubled ones and ones
between a convolution and its Pad vanish, and a Transpose between a weight's DQ and its reader is folded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.errors import UsageError
from trtopt.onnxgraph import OWN_DOMAINS
from trtopt.onnxmodel.model_file import ModelFile, array_of, is_external, raw_bytes
from trtopt.precision.emission.numbers import LARGEST
from trtopt.precision.placement.plan import Precision

_KINDS: dict[int, Precision] = {
    onnx.TensorProto.INT8: "int8",
    onnx.TensorProto.FLOAT8E4M3FN: "fp8",
    onnx.TensorProto.INT4: "int4",
}
_MOVES = ("Transpose", "Identity")


@dataclass
class Existing:
    """What was taken out: amax by (node, input) of activations, scales by (node, input) of weights.

    `tensors` gives the amax by tensor, for readers that had no pair; `pairs` counts what was there.
    """

    precision: Precision | None = None
    edges: dict[tuple[str, int], float] = field(default_factory=dict)
    weights: dict[tuple[str, int], NDArray[np.float32]] = field(default_factory=dict)
    axes: dict[tuple[str, int], int | None] = field(default_factory=dict)
    tensors: dict[str, float] = field(default_factory=dict)
    pairs: int = 0

    def __bool__(self) -> bool:
        return self.pairs > 0


@dataclass(frozen=True)
class _Pair:
    """A DQ with what it reads through Q, or a narrow constant."""

    source: str
    scale: NDArray[np.float32]
    axis: int | None
    precision: Precision


def is_quantised(model: onnx.ModelProto) -> bool:
    """Whether the main graph has Q or DQ nodes."""
    return any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in model.graph.node)


def take_out(file: ModelFile) -> Existing:
    """Remove every Q/DQ pair from the main graph, in place, and tell what they said.

    Raises:
        UsageError: UINT8, an asymmetric or computed scale, several types at once, a Q without its DQ or the
            reverse, weights that are stored in a narrow type.
    """
    found, model = Existing(), file.proto
    pairs = dict(_pairs(model, file.folder))
    if not pairs:
        return found
    kinds = {pair.precision for pair in pairs.values()}
    if len(kinds) > 1:
        raise _refused("the model mixes Q/DQ of several types", "quantise the float model instead")
    found.precision, found.pairs = kinds.pop(), len(pairs)
    constants = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    maker = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear", *_MOVES):
            for index, name in enumerate(node.input):
                _remember(found, pairs, constants, maker, node, index, name)
    _bypass(model, {dq: _root(pairs, dq) for dq in pairs})
    return found


def _pairs(model: onnx.ModelProto, folder: Path) -> Iterator[tuple[str, _Pair]]:
    """Each DQ's output with its pair."""
    maker = {name: node for node in model.graph.node for name in node.output}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.domain in OWN_DOMAINS:
            _check_read_by_dq_alone(model, node)
        if node.op_type != "DequantizeLinear" or node.domain not in OWN_DOMAINS:
            continue
        quantize = maker.get(node.input[0])
        if quantize is None or quantize.op_type != "QuantizeLinear":
            raise _refused(
                f"node {node.name!r} reads no QuantizeLinear: its weight is stored in a narrow type",
                "quantise the float model; a graph in its final form needs no quantising",
            )
        scale, kind = _scale_of(quantize, constants, folder, _named_type(quantize))
        again, _ = _scale_of(node, constants, folder, kind)
        if not np.array_equal(scale, again):
            raise _refused(f"nodes {quantize.name!r} and {node.name!r} have different scales", "train again")
        axis = next((int(item.i) for item in node.attribute if item.name == "axis"), 1)
        yield node.output[0], _Pair(quantize.input[0], scale, axis if scale.size > 1 else None, _KINDS[kind])


def _check_read_by_dq_alone(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    for reader in model.graph.node:
        if node.output[0] in reader.input and reader.op_type != "DequantizeLinear":
            raise _refused(
                f"node {reader.name!r} ({reader.op_type}) reads {node.output[0]!r} between Q and DQ",
                "export with plain Q/DQ pairs (no QLinear or integer operators)",
            )


def _named_type(quantize: onnx.NodeProto) -> int:
    """What a Q without a zero point makes: what its attribute says, from opset 21 on, or UINT8."""
    named = next((int(item.i) for item in quantize.attribute if item.name == "output_dtype"), 0)
    return named or onnx.TensorProto.UINT8


def _scale_of(
    node: onnx.NodeProto, constants: dict[str, onnx.TensorProto], folder: Path, unsaid: int
) -> tuple[NDArray[np.float32], int]:
    """A Q's or DQ's scale and element type, which is `unsaid` where no zero point tells it."""
    zero = constants.get(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    kind = zero.data_type if zero is not None else unsaid
    if kind not in _KINDS:
        raise _refused(
            f"node {node.name!r} quantises to {onnx.TensorProto.DataType.Name(kind)}",
            "TensorRT takes symmetric INT8 (an INT8 zero point of 0): export so, or quantise the float model",
        )
    if zero is not None and (_bytes_of(zero, folder).strip(b"\0") or any(zero.int32_data)):
        raise _refused(
            f"node {node.name!r} has a zero point that is not 0",
            "TensorRT takes symmetric Q/DQ only: train with symmetric ranges, or quantise the float model",
        )
    if node.input[1] not in constants:
        raise _refused(
            f"node {node.name!r} computes its scale at run time", "fold constants first: trtopt rewrite"
        )
    scale = array_of(constants[node.input[1]], folder).astype(np.float32)
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise _refused(f"node {node.name!r} has a scale that is not above 0", "quantise the float model")
    return scale, kind


def _bytes_of(tensor: onnx.TensorProto, folder: Path) -> bytes:
    return bytes(raw_bytes(tensor, folder) if is_external(tensor) else tensor.raw_data)


def _refused(problem: str, remedy: str) -> UsageError:
    return UsageError(problem, remedy)


def _root(pairs: dict[str, _Pair], tensor: str) -> str:
    """The tensor in front of one or several pairs in a row."""
    while tensor in pairs:
        tensor = pairs[tensor].source
    return tensor


def _remember(
    found: Existing,
    pairs: dict[str, _Pair],
    constants: dict[str, int],
    maker: dict[str, Any],
    node: onnx.NodeProto,
    index: int,
    name: str,
) -> None:
    """Note the scale under which one input of a node is read."""
    perms = []
    behind = name
    while behind in maker and maker[behind].op_type in _MOVES and behind not in pairs:
        if maker[behind].op_type == "Transpose":
            perms.append(next((list(a.ints) for a in maker[behind].attribute if a.name == "perm"), None))
        behind = maker[behind].input[0]
    if behind in pairs and _root(pairs, behind) in constants:
        axis, rank = pairs[behind].axis, constants[_root(pairs, behind)]
        if axis is not None:
            axis %= rank
        for perm in reversed(perms):
            if axis is not None:
                axis = perm.index(axis) if perm else rank - 1 - axis
        found.weights[node.name, index] = pairs[behind].scale
        found.axes[node.name, index] = axis
    elif name in pairs:
        pair = pairs[name]
        amax = float(pair.scale.max()) * LARGEST[pair.precision]
        found.edges[node.name, index] = amax
        found.tensors.setdefault(_root(pairs, name), amax)


def _bypass(model: onnx.ModelProto, replacement: dict[str, str]) -> None:
    graph = model.graph
    kept = [n for n in graph.node if n.op_type not in ("QuantizeLinear", "DequantizeLinear")]
    for node in kept:
        for index, name in enumerate(node.input):
            if name in replacement:
                node.input[index] = replacement[name]
    for value in graph.output:
        if value.name in replacement:  # an output that was read through Q/DQ keeps its name
            source = replacement[value.name]
            kept.append(onnx.helper.make_node("Identity", [source], [value.name], f"{value.name}_kept"))
    del graph.node[:]
    graph.node.extend(kept)
