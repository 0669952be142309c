"""Q/DQ written into a model, in place, as a plan says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.onnxio.graph_walk import WEAK_TYPES, graphs_of, reads_of, unused_name
from trtopt.onnxio.model_file import ModelFile, array_of
from trtopt.onnxio.weights import constant, constant_of_parts, runs_of_rows
from trtopt.precision.placement.placement_plan import Edge, Plan, WeightEdge
from trtopt.precision.placement.weighted import BLOCK
from trtopt.precision.qdq.qdq_format import QdqFormat
from trtopt.precision.qdq.quantised_values import (
    ELEMENT,
    check_weight,
    packed,
    packed_bytes,
    quantised,
    weight_scale,
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
        self._taken = set(_names(model))
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
            scale = given
            names = self._scale(tensor, scale)
            if self.form.stored:
                narrow = self._narrow(tensor, values, scale, axis, block)
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
            perms.append(next((list(item.ints) for item in node.attribute if item.name == "perm"), None))
            if node.op_type == "Identity":
                perms.pop()
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

    def _fresh(self, like: str) -> str:
        name = unused_name(like, self._taken)
        self._taken.add(name)
        return name

    def _constant(self, like: str, values: NDArray[Any]) -> str:
        tensor = constant(values, self._fresh(like), self.file.spool)
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
            narrow = quantised(values[run], steps, axis, precision, block)
            return np.frombuffer(packed(narrow, precision), np.uint8)

        parts = map(part, runs_of_rows(values, block or 1))
        size, name = packed_bytes(values.size, precision), self._fresh(f"{tensor}_quantized")
        narrow = constant_of_parts(parts, np.uint8, (size,), name, self.file.spool)
        narrow.data_type = ELEMENT[precision]
        narrow.dims[:] = values.shape
        self.model.graph.initializer.append(narrow)
        return narrow.name

    def _scale(self, tensor: str, scale: NDArray[np.float32]) -> tuple[str, str]:
        """Scale and zero point as constants."""
        precision = self.form.precision
        name = self._fresh(f"{tensor}_zero_point")
        zero = onnx.TensorProto(name=name, data_type=ELEMENT[precision], dims=scale.shape)
        zero.raw_data = packed(np.zeros(scale.shape, np.int8), precision)
        self.model.graph.initializer.append(zero)
        return self._constant(f"{tensor}_scale", scale), zero.name

    def _pair(self, tensor: str, scale: str, zero: str, axis: int | None) -> tuple[list[onnx.NodeProto], str]:
        name = self._fresh(f"{tensor}_QuantizeLinear")
        result = self._fresh(f"{tensor}_quantized")
        quantize = onnx.helper.make_node(
            "QuantizeLinear", [tensor, scale, zero], [result], name, **_along(axis)
        )
        nodes, output = self._dequantize(result, tensor, scale, zero, axis, 0)
        return [quantize, *nodes], output

    def _dequantize(
        self, narrow: str, tensor: str, scale: str, zero: str, axis: int | None, block: int
    ) -> tuple[list[onnx.NodeProto], str]:
        name, result = self._fresh(f"{tensor}_DequantizeLinear"), self._fresh(f"{tensor}_dequantized")
        blocks: dict[str, Any] = _along(axis) | ({"block_size": block} if block else {})
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
        nodes = _alive(order, {value.name for value in graph.output})
        del graph.node[:]
        graph.node.extend(nodes)
        drop_unread(self.model)
        if not self.form.strongly_typed:
            kept = [item for item in self.model.metadata_props if item.key != WEAK_TYPES]
            del self.model.metadata_props[:]
            self.model.metadata_props.extend(kept)
            self.model.metadata_props.add(key=WEAK_TYPES, value=_REST)


def _tell_kernel(node: onnx.NodeProto, shape: Sequence[int]) -> None:
    """Write a convolution's kernel size into it: TensorRT 8.6 does not look at a kernel that a DQ makes."""
    if node.op_type == "Conv" and not any(item.name == "kernel_shape" for item in node.attribute):
        node.attribute.append(onnx.helper.make_attribute("kernel_shape", list(shape[2:])))


def _names(model: onnx.ModelProto) -> Iterator[str]:
    """Every name of a node or tensor: ONNX Runtime allows none in the main graph that a subgraph has too."""
    for part in graphs_of(model.graph):
        yield from (item.name for item in (*part.input, *part.initializer))
        for node in part.node:
            yield from (node.name, *node.output)


def _along(axis: int | None) -> dict[str, Any]:
    return {} if axis is None else {"axis": axis}


def _alive(nodes: Iterable[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    """The nodes, in order, whose results are read by others or wanted."""
    kept = []
    needed = set(wanted)
    for node in reversed(list(nodes)):
        if needed & set(node.output):
            kept.append(node)
            needed |= set(reads_of(node))
    return kept[::-1]


def drop_unread(model: onnx.ModelProto) -> None:
    """Remove the main graph's constants that no node reads any more, in place."""
    graph = model.graph
    read = {name for node in graph.node for name in reads_of(node)} | {value.name for value in graph.output}
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name not in read:
            del graph.initializer[index]
