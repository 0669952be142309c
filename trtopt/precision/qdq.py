"""Q/DQ: the arithmetic of symmetric quantisation, how each TensorRT wants it, and a plan written out.

Sources: the release notes and operator pages of TensorRT 8.6, 10 and 11, and ONNX's QuantizeLinear.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.errors import ModelError, UsageError
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.onnxio.graph_walk import (
    WEAK_TYPES,
    attribute,
    graphs_of,
    names_in,
    nodes_for,
    reads_of,
    refill,
    take_name,
)
from trtopt.onnxio.model_file import ModelFile, array_of
from trtopt.onnxio.weights import constant, constant_of_parts, runs_of_rows
from trtopt.precision.placement.draft import Edge, Plan, Precision, WeightEdge
from trtopt.precision.placement.products import BLOCK
from trtopt.targets import target_named, targets_where

LARGEST: dict[Precision, float] = {"int8": 127.0, "fp8": 448.0, "int4": 7.0}
"""The magnitude that amax is mapped to. INT8 reaches −128 and INT4 −8, but both signs reach amax."""
RANGE: dict[Precision, tuple[float, float]] = {"int8": (-128, 127), "fp8": (-448, 448), "int4": (-8, 7)}
ELEMENT: dict[Precision, int] = {"int8": 3, "fp8": 17, "int4": 22}
"""ONNX's numbers of the element types: INT8, FLOAT8E4M3FN, INT4."""
SMALLEST_HALF = 2.0**-24
"""FP16's smallest number above 0."""
_IDLE_AMAX = 1.0
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""Of a block's largest |w|, what its scale may reach."""


def scale_of(amax: NDArray[Any] | float, precision: Precision) -> NDArray[np.float32]:
    """amax / largest in FP32, always above 0: what is all zero gets the scale of amax 1."""
    wide = np.asarray(amax, np.float64)
    scale = np.where(wide > 0, wide, _IDLE_AMAX) / LARGEST[precision]
    return np.asarray(np.maximum(scale.astype(np.float32), np.finfo(np.float32).tiny))


def held_by_half(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """The next larger scales that FP16 holds exactly: Q and DQ mean the same before and after casting.

    The smallest is 2⁻²⁴: a scale below it becomes that, which clips nothing and coarsens values under 1e-5.
    What exceeds FP16 stays; casting keeps such a pair in FP32.
    """
    with np.errstate(over="ignore"):
        half = scale.astype(np.float16)
        up = np.where(half.astype(np.float32) < scale, np.nextafter(half, np.float16(np.inf)), half)
    wide = up.astype(np.float32)
    return np.asarray(np.where(np.isfinite(wide), wide, scale).astype(np.float32))


def check_weight(weight: NDArray[Any], name: str, node: str) -> None:
    """Refuse a weight that has no scale because not all of it is finite."""
    finite = np.isfinite(weight)
    if finite.all():
        return
    place = [int(index) for index in np.unravel_index(int(np.argmin(finite)), weight.shape)]
    raise ModelError(
        f"weight {name!r} of node {node!r} is not finite: {weight[tuple(place)]} at {place}",
        "export the model again from an intact checkpoint",
    )


def weight_scale(
    weight: NDArray[Any],
    axis: int | None,
    precision: Precision,
    block: int = 0,
    importance: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """The scale of each slice along `axis`, of the whole (None), or of each block of rows along axis 0.

    Slices reach their largest |w|. Blocks, of which 15 levels are all there is, reach what errs least; the
    squared errors of a block's rows count by `importance` [block], or alike.
    """
    if block:
        blocks = weight.reshape(-1, block, *weight.shape[1:])
        found = [_least_error(rows.astype(np.float32), precision, importance) for rows in blocks]
        return scale_of(np.stack(found), precision)
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis % weight.ndim)
    return scale_of(np.maximum(weight.max(axis=others), -weight.min(axis=others)), precision)


def _least_error(
    rows: NDArray[np.float32], precision: Precision, importance: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """The amax of each column with the least squared error of rounding and clipping its rows."""
    low, high = RANGE[precision]
    largest = np.abs(rows).max(axis=0)
    counts = np.ones(len(rows), np.float32) if importance is None else importance
    best, least = largest, np.full(largest.shape, np.inf, np.float32)
    for share in _SHARES:
        amax = largest * np.float32(share)
        steps = scale_of(amax, precision)
        error = counts @ np.square(np.clip(np.rint(rows / steps), low, high) * steps - rows)
        best, least = np.where(error < least, amax, best), np.minimum(error, least)
    return np.asarray(best)


def quantize_weight(
    weight: NDArray[Any], scale: NDArray[np.float32], axis: int | None, precision: Precision, block: int = 0
) -> NDArray[Any]:
    """The weight in its narrow type: rounded half to even and clipped, as QuantizeLinear does."""
    steps = np.repeat(scale, block, axis=0) if block else _broadcast(scale, axis, weight.ndim)
    low, high = RANGE[precision]
    ratio = np.clip(weight.astype(np.float32) / steps, low, high)
    narrow = numpy_dtype("float8_e4m3fn") if precision == "fp8" else np.dtype(np.int8)
    return np.asarray((ratio if precision == "fp8" else np.rint(ratio)).astype(narrow))


def dequantize_weight(
    narrow: NDArray[Any], scale: NDArray[np.float32], axis: int | None
) -> NDArray[np.float32]:
    """What DequantizeLinear makes of a weight whose zero is 0, in FP32."""
    return np.asarray(narrow.astype(np.float32) * _broadcast(scale, axis, narrow.ndim), np.float32)


def _broadcast(scale: NDArray[np.float32], axis: int | None, rank: int) -> NDArray[np.float32]:
    """A scale for each slice along an axis, or one for all, so that it broadcasts."""
    if axis is None:
        return scale
    return scale.reshape([-1 if index == axis % rank else 1 for index in range(rank)])


def packed(values: NDArray[Any], precision: Precision) -> bytes:
    """The values as ONNX stores them: a byte each, INT4 in pairs with the first in the low half."""
    if precision != "int4":
        return values.tobytes()
    halves = np.append(values.ravel(), np.zeros(values.size % 2, np.int8)).view(np.uint8) & 0xF
    return bytes((halves[0::2] | (halves[1::2] << 4)).tobytes())


@dataclass(frozen=True)
class QdqFormat:
    """One way to write Q/DQ.

    `strongly_typed`: what is not quantised becomes FP16 in the graph itself, scales too. `opset` is the
    least that the operators need, `most` the highest that the target reads. `stored`: weights are kept in
    their narrow type with a DQ alone; otherwise they stay FP32 with a Q and a DQ.
    """

    precision: Precision
    strongly_typed: bool
    opset: int
    most: int
    stored: bool

    def scale(self, amax: NDArray[Any] | float) -> NDArray[np.float32]:
        """The scale of a range, as this form writes it."""
        return self.fit(scale_of(amax, self.precision))

    def fit(self, scale: NDArray[np.float32]) -> NDArray[np.float32]:
        """A scale that stays what it is when the graph becomes FP16, if it does."""
        return held_by_half(scale) if self.strongly_typed else scale

    def is_beneath(self, amax: float) -> bool:
        """Whether FP16's smallest number must stand for the scale of a range."""
        return self.strongly_typed and bool(scale_of(amax, self.precision) < SMALLEST_HALF)


def qdq_format_for(precision: Precision, target: str, *, stored: bool = False) -> QdqFormat:
    """The form for a target, named as `trtopt rewrite` names them."""
    row = target_named(target)
    if precision not in row.qdq_opsets:
        able = targets_where(lambda other: precision in other.qdq_opsets)
        raise UsageError(
            f"TensorRT {target} has no {precision.upper()}",
            f"use --precision {' or '.join(row.qdq_opsets)}, or --target {' or '.join(able)}",
        )
    if stored and not row.stored_weights:
        raise UsageError(
            f"TensorRT {target} reads weights as FP32 with a Q and a DQ only", "omit --store-weights"
        )
    return QdqFormat(
        precision,
        strongly_typed=not row.weakly_typed,
        opset=row.qdq_opsets[precision],
        most=row.documented_opset,
        stored=stored or precision == "int4",
    )


_REST = "float16"  # what a weakly typed TensorRT may run in place of FP32


@dataclass(frozen=True)
class Scales:
    """Given scales: `tensors` amax by tensor; `edges` and `weights` by (node, input), which go first.

    `weights` are whole scale arrays, as a model brought them from training or as rounding found them.
    """

    tensors: Mapping[str, float]
    edges: Mapping[tuple[str, int], float] = field(default_factory=dict)
    weights: Mapping[tuple[str, int], NDArray[np.float32]] = field(default_factory=dict)

    def of(self, edge: Edge) -> float:
        """The amax of an edge."""
        return self.edges.get((edge.node, edge.index), self.tensors.get(edge.tensor, 0.0))


def write(model: ModelFile, plan: Plan, scales: Scales, form: QdqFormat) -> dict[str, str]:
    """Insert the plan's Q and DQ nodes into the main graph, in place; dead nodes and constants go.

    Weights that stay FP32 stay in their file; large ones in a narrow type go to the model's spool.

    Returns:
        The name of the scale of each tensor whose amax came from `scales.tensors`.
    """
    writer = _Writer(model, form)
    for weight in plan.weights:
        writer.weight(weight, scales.weights.get((weight.node, weight.index)))
    for edge in plan.edges:
        writer.activation(edge, scales.of(edge))
    writer.finish()
    return writer.scale_names


class _Writer:
    """Collects new nodes by the place where they belong, then puts all in at once."""

    def __init__(self, file: ModelFile, form: QdqFormat) -> None:
        self.file, self.model, self.form = file, file.proto, form
        model = file.proto
        self._nodes = {node.name: node for node in model.graph.node}
        self._maker = {name: node for node in model.graph.node for name in node.output}
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        # ONNX Runtime allows no name in the main graph that a subgraph has too
        self._taken = names_in(model.graph) | {
            node.name for part in graphs_of(model.graph) for node in part.node
        }
        self._before: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        self._after: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        self._done: dict[tuple[Any, ...], str] = {}
        self.scale_names: dict[str, str] = {}

    def activation(self, edge: Edge, amax: float) -> None:
        """One pair a tensor and amax, shared by all edges that read it so; the others read on in float."""
        key = (edge.tensor, amax)
        if key not in self._done:
            scale, zero = self._scale(edge.tensor, self.form.scale(amax))
            self.scale_names.setdefault(edge.tensor, scale)
            pair, result = self._pair(edge.tensor, scale, zero, None)
            self._after[edge.tensor] += pair
            self._done[key] = result
        self._nodes[edge.node].input[edge.index] = self._done[key]

    def weight(self, place: WeightEdge, given: NDArray[np.float32] | None) -> None:
        """A weight's Q and DQ, or the narrow weight and its DQ; shared by readers along the same axis."""
        node = self._nodes[place.node]
        tensor = self._plain(node.input[place.index])
        key = (tensor, place.axis, None if given is None else given.tobytes())
        if key not in self._done:
            block = BLOCK if self.form.precision == "int4" else 0
            axis = 0 if block else place.axis
            values = array_of(self._constants[tensor], self.file.folder)
            check_weight(values, tensor, place.node)
            if given is None:
                given = self.form.fit(weight_scale(values, axis, self.form.precision, block))
            names = self._scale(tensor, given)
            if self.form.stored:
                narrow = self._narrow(tensor, values, given, axis, block)
                nodes, result = self._dequantize(narrow, tensor, *names, axis, block)
            else:
                nodes, result = self._pair(tensor, *names, axis)
            self._before[place.node] += nodes
            self._done[key] = result
        node.input[place.index] = self._done[key]
        _tell_kernel(node, self._constants[tensor].dims)

    def _plain(self, tensor: str) -> str:
        """The initializer of this value: Identity and Transpose in front of it are folded into a new one."""
        perms: list[Any] = []
        root = tensor
        while (node := self._maker.get(root)) is not None:
            if node.op_type != "Identity":
                perms.append(attribute(node, "perm"))
            root = node.input[0]
        if root == tensor or not perms:
            return root
        key = ("plain", tensor)
        if key not in self._done:
            values = array_of(self._constants[root], self.file.folder)
            for perm in reversed(perms):
                values = np.transpose(values, perm)
            self._done[key] = self._constant(f"{root}_transposed", np.ascontiguousarray(values))
        return self._done[key]

    # ── pieces ──────────────────────────────────────────────────────────────────────────────────────────

    def _constant(self, like: str, values: NDArray[Any]) -> str:
        tensor = constant(values, take_name(like, self._taken), self.file.spool)
        self.model.graph.initializer.append(tensor)
        self._constants[tensor.name] = tensor
        return tensor.name

    def _narrow(
        self, tensor: str, values: NDArray[Any], scale: NDArray[np.float32], axis: int | None, block: int
    ) -> str:
        """A weight in its narrow type as a constant."""
        precision = self.form.precision

        def part(run: Any) -> NDArray[np.uint8]:
            own = axis is not None and axis % values.ndim == 0
            steps = scale[run.start // (block or 1) : run.stop // (block or 1)] if own else scale
            narrow = quantize_weight(values[run], steps, axis, precision, block)
            return np.frombuffer(packed(narrow, precision), np.uint8)

        parts = map(part, runs_of_rows(values, block or 1))
        name = take_name(f"{tensor}_quantized", self._taken)
        size = (values.size + 1) // 2 if precision == "int4" else values.size
        narrow = constant_of_parts(parts, np.uint8, (size,), name, self.file.spool)
        narrow.data_type = ELEMENT[precision]
        narrow.dims[:] = values.shape
        self.model.graph.initializer.append(narrow)
        return narrow.name

    def _scale(self, tensor: str, scale: NDArray[np.float32]) -> tuple[str, str]:
        """Scale and zero point as constants."""
        precision = self.form.precision
        name = take_name(f"{tensor}_zero_point", self._taken)
        zero = onnx.TensorProto(name=name, data_type=ELEMENT[precision], dims=scale.shape)
        zero.raw_data = packed(np.zeros(scale.shape, np.int8), precision)
        self.model.graph.initializer.append(zero)
        return self._constant(f"{tensor}_scale", scale), zero.name

    def _pair(self, tensor: str, scale: str, zero: str, axis: int | None) -> tuple[list[onnx.NodeProto], str]:
        name = take_name(f"{tensor}_QuantizeLinear", self._taken)
        result = take_name(f"{tensor}_quantized", self._taken)
        quantize = onnx.helper.make_node(
            "QuantizeLinear", [tensor, scale, zero], [result], name, **_axis_of(axis)
        )
        nodes, output = self._dequantize(result, tensor, scale, zero, axis, 0)
        return [quantize, *nodes], output

    def _dequantize(
        self, narrow: str, tensor: str, scale: str, zero: str, axis: int | None, block: int
    ) -> tuple[list[onnx.NodeProto], str]:
        name = take_name(f"{tensor}_DequantizeLinear", self._taken)
        result = take_name(f"{tensor}_dequantized", self._taken)
        blocks: dict[str, Any] = _axis_of(axis) | ({"block_size": block} if block else {})
        node = onnx.helper.make_node("DequantizeLinear", [narrow, scale, zero], [result], name, **blocks)
        return [node], result

    # ── all at once ─────────────────────────────────────────────────────────────────────────────────────

    def finish(self) -> None:
        """Put the new nodes in: a tensor's pair behind its maker, a weight's in front of its first reader."""
        graph, order = self.model.graph, []
        for value in graph.input:
            order += self._after.pop(value.name, [])
        for node in graph.node:
            order += [*self._before.get(node.name, []), node]
            for name in node.output:
                order += self._after.get(name, [])
        refill(graph.node, nodes_for(order, (value.name for value in graph.output))[0])
        drop_unread(self.model)
        if not self.form.strongly_typed:
            kept = [item for item in self.model.metadata_props if item.key != WEAK_TYPES]
            refill(self.model.metadata_props, kept)
            self.model.metadata_props.add(key=WEAK_TYPES, value=_REST)


def _tell_kernel(node: onnx.NodeProto, shape: Sequence[int]) -> None:
    """Write a convolution's kernel size into it: TensorRT 8.6 does not look at a kernel that a DQ makes."""
    if node.op_type == "Conv" and attribute(node, "kernel_shape") is None:
        node.attribute.append(onnx.helper.make_attribute("kernel_shape", list(shape[2:])))


def _axis_of(axis: int | None) -> dict[str, Any]:
    return {} if axis is None else {"axis": axis}


def drop_unread(model: onnx.ModelProto) -> None:
    """Remove the main graph's constants that no node reads any more, in place."""
    graph = model.graph
    read = {value.name for value in graph.output}.union(*map(reads_of, graph.node))
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name not in read:
            del graph.initializer[index]
