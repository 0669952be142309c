"""The ONNX graph at concrete shapes, as far as profiling needs it.

Only the main graph: nodes inside loops and branches are part of the node that holds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trtopt.onnxio.graph_walk import OWN_DOMAINS, name_of, refill
from trtopt.onnxio.model_info import dtype_name
from trtopt.records import Shape

if TYPE_CHECKING:
    import onnx


DEQUANTIZE, QUANTIZE = "DequantizeLinear", "QuantizeLinear"
_KEEPS_CONSTANT = frozenset({QUANTIZE, DEQUANTIZE, "Cast", "Transpose", "Identity", "Reshape"})
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN"})
"""Operators whose second input is what a layer's weights are, where it is a constant."""


@dataclass(frozen=True)
class Node:
    """`name` is what TensorRT calls it: the node's own, or made from its first output where it has none."""

    index: int
    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    domain: str = ""
    """Empty for ONNX's own operators."""


@dataclass(frozen=True)
class Graph:
    """Nodes in the file's order; types are NumPy names; shapes that inference does not find are missing."""

    nodes: tuple[Node, ...]
    outputs: frozenset[str]
    constants: frozenset[str]
    shapes: Mapping[str, Shape]
    dtypes: Mapping[str, str]

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """Nodes by TensorRT's name for them; of equal names the first."""
        return {node.name: node for node in reversed(self.nodes)}

    @cached_property
    def producer(self) -> dict[str, Node]:
        """Which node writes a tensor."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def consumers(self) -> dict[str, tuple[Node, ...]]:
        """Which nodes read a tensor."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(filter(None, node.inputs)):
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    def is_constant(self, tensor: str) -> bool:
        """An initializer, or made of nothing but such (quantised weights are)."""
        while tensor not in self.constants:
            node = self.producer.get(tensor)
            if node is None or node.op not in _KEEPS_CONSTANT or not node.inputs:
                return node is not None and node.op == "Constant"
            tensor = node.inputs[0]
        return True

    def before_pairs(self, tensor: str) -> str:
        """What a tensor is in front of Q and DQ."""
        while (node := self.producer.get(tensor)) is not None and node.op in (QUANTIZE, DEQUANTIZE):
            tensor = node.inputs[0]
        return tensor

    def weight_of(self, node: Node) -> str | None:
        """The constant that a convolution, matrix product or recurrent layer holds; None without one."""
        if node.op not in WEIGHTED or len(node.inputs) < 2:
            return None
        return next((name for name in node.inputs[1::-1] if self.is_constant(name)), None)

    def stored_dtype(self, tensor: str) -> str:
        """The type in which a tensor has to be moved: the quantised one where it lies between Q and DQ."""
        node = self.producer.get(tensor)
        if node is not None and node.op == DEQUANTIZE:
            inner = node.inputs[0]
            return self.dtypes.get(inner) or "int8"
        readers = self.consumers.get(tensor, ())
        if readers and all(reader.op == QUANTIZE for reader in readers) and tensor not in self.outputs:
            return self.dtypes.get(readers[0].outputs[0]) or "int8"
        return self.dtypes.get(tensor, "")

    def requested_dtype(self, node: Node) -> str:
        """The type that the graph requests for a node's computation.

        For a node with weights whose data inputs all come from DequantizeLinear it is the quantised type,
        for every other one the type of its first floating input.
        """
        data = [name for name in node.inputs[:2] if name]
        made_by = [self.producer.get(name) for name in data]
        if node.op in WEIGHTED and data and all(one and one.op == DEQUANTIZE for one in made_by):
            return self.stored_dtype(data[0])
        types = (self.dtypes.get(name, "") for name in node.inputs)
        return next((dtype for dtype in types if "float" in dtype), "")


def read_graph(model: onnx.ModelProto, shapes: Mapping[str, Shape]) -> Graph:
    """The main graph with its inputs at `shapes`, and what ONNX's inference finds from there."""
    import onnx

    from trtopt.onnxio.shape_inference import skeleton_at

    fixed = skeleton_at(model, shapes)
    with suppress(onnx.shape_inference.InferenceError):
        fixed = infer_concrete(fixed)
    graph = fixed.graph
    weights = model.graph.initializer  # those of the inferred graph lack what is kept outside
    computed = {item.name: tuple(item.dims) for item in graph.initializer}
    known: dict[str, Shape] = {item.name: tuple(item.dims) for item in weights}
    dtypes = {item.name: dtype_name(item.data_type) for item in weights}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.elem_type:
            dtypes.setdefault(value.name, dtype_name(tensor.elem_type))
        if (shape := _shape_of(value)) is not None:
            known.setdefault(value.name, shape)
    return Graph(
        nodes=tuple(
            Node(
                index=index,
                name=name_of(node),
                op=node.op_type,
                inputs=tuple(node.input),
                outputs=tuple(node.output),
                attributes={
                    item.name: onnx.helper.get_attribute_value(item)
                    for item in node.attribute
                    if item.type in (item.INT, item.INTS, item.FLOAT, item.STRING)
                },
                domain="" if node.domain in OWN_DOMAINS else node.domain,
            )
            for index, node in enumerate(model.graph.node)
        ),
        outputs=frozenset(value.name for value in graph.output),
        constants=frozenset(item.name for item in weights),
        shapes=computed | known,
        dtypes=dtypes,
    )


# Shapes of a graph whose inputs have known shapes: what its nodes compute about shapes is computed.
#
# ONNX's inference follows such values through a few operators only. What it does not follow stays open, with
# every shape after it; exported transformers compute masks and reshapes that way.


_LARGEST = 4096
"""Elements of what still counts as a shape, or an index of positions."""
_ROUNDS = 100


def infer_concrete(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with all types and shapes that are found; nodes whose values are, are initializers there."""
    from onnx import numpy_helper

    from trtopt.onnxio.shape_inference import infer_shapes

    found = infer_shapes(model)
    for _ in range(_ROUNDS):
        values = dict(_computed(found))
        if not values:
            break
        kept = [node for node in found.graph.node if not set(node.output) <= values.keys()]
        refill(found.graph.node, kept)
        made = [numpy_helper.from_array(array, name) for name, array in values.items()]
        found.graph.initializer.extend(made)
        others = [value for value in found.graph.value_info if value.name not in values]
        refill(found.graph.value_info, others)
        found = infer_shapes(found)
    return found


def _computed(model: onnx.ModelProto) -> Iterator[tuple[str, NDArray[Any]]]:
    """Values of whole numbers and booleans that follow from shapes and from constants."""
    from onnx import helper, numpy_helper

    known = {
        item.name: numpy_helper.to_array(item)
        for item in model.graph.initializer
        if item.data_location != item.EXTERNAL
        and np.prod(item.dims) <= _LARGEST
        and helper.tensor_dtype_to_np_dtype(item.data_type).kind in "iub"
    }
    values = ((one.name, _shape_of(one)) for one in (*model.graph.input, *model.graph.value_info))
    shapes = {name: shape for name, shape in values if shape is not None}
    shapes |= {item.name: tuple(item.dims) for item in model.graph.initializer}
    outputs = {value.name for value in model.graph.output}
    for node in model.graph.node:
        if node.domain not in OWN_DOMAINS or outputs & set(node.output):
            continue
        arrays = _results(node, known, shapes, model)
        if arrays is None or any(one.dtype.kind not in "iub" or one.size > _LARGEST for one in arrays):
            continue
        for name, array in zip(node.output, arrays, strict=True):
            known[name] = array
            yield name, array


def _shape_of(value: onnx.ValueInfoProto) -> Shape | None:
    """None where an axis is open, or negative: lengths that are too small make such."""
    tensor = value.type.tensor_type
    axes = tensor.shape.dim
    is_known = tensor.HasField("shape") and all(
        one.HasField("dim_value") and one.dim_value >= 0 for one in axes
    )
    return tuple(one.dim_value for one in axes) if is_known else None


def _results(
    node: onnx.NodeProto,
    known: Mapping[str, NDArray[Any]],
    shapes: Mapping[str, tuple[int, ...]],
    model: onnx.ModelProto,
) -> list[NDArray[Any]] | None:
    """What a node computes; None where its inputs, or how, are not known."""
    from onnx.reference import ReferenceEvaluator

    inputs = {name for name in node.input if name}
    if node.op_type in ("Shape", "Size"):
        if node.input[0] not in shapes:
            return None
        # only the shape is read: no memory stands behind it
        feeds = {node.input[0]: np.broadcast_to(np.int8(0), shapes[node.input[0]])}
    elif not inputs <= known.keys() or any(item.HasField("g") for item in node.attribute):
        return None
    else:
        feeds = {name: known[name] for name in inputs}
    versions = {item.domain: item.version for item in model.opset_import}
    try:
        return [np.asarray(one) for one in ReferenceEvaluator(node, opsets=versions).run(None, feeds)]
    except Exception:  # noqa: BLE001  (operators of the reference raise whatever they run into)
        return None
