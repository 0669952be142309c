"""The nodes that give an input or output another type or layout.

An input becomes input → Cast → Transpose → (x − mean) · 1/std → the model's own input; an output the
reverse. `fold-scale-before` then folds the arithmetic into the first convolution where that is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from trtopt.onnxio.element_types import numpy_dtype
from trtopt.onnxio.graph_walk import graphs_of, names_in, refill, rename_uses, take_name
from trtopt.onnxio.model_file import ModelFile, array_of
from trtopt.records.tensors import TypedTensor

Array = np.ndarray[Any, Any]
FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


@dataclass(frozen=True)
class Edit:
    """One tensor's change: `tensor` describes the result, `graph_dtype` is its type in the new graph."""

    tensor: TypedTensor
    value: ValueInfoProto

    @property
    def held(self) -> str:
        """The type before the change, by NumPy name."""
        return str(helper.tensor_dtype_to_np_dtype(self.value.type.tensor_type.elem_type))

    @property
    def graph_dtype(self) -> int:
        """INT8 comes with its scale, after the quantisation: until then the tensor keeps its type."""
        kept = self.tensor.dtype == "int8" and self.tensor.scale is None
        name = self.tensor.model_dtype if kept else self.tensor.dtype
        return int(helper.np_dtype_to_tensor_dtype(numpy_dtype(name)))


def shape_of(value: ValueInfoProto) -> tuple[int | str, ...] | None:
    """The lengths or names of its axes; None if the model does not say how many there are."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(axis.dim_value if axis.HasField("dim_value") else axis.dim_param for axis in kind.shape.dim)


def constant_in(model: ModelFile, name: str) -> Array | None:
    """The values of a weight or a Constant; None for any other tensor."""
    for part in graphs_of(model.proto.graph):
        for item in part.initializer:
            if item.name == name:
                return array_of(item, model.folder)
        for node in part.node:
            if node.op_type == "Constant" and name in node.output and node.attribute[0].name == "value":
                value: Array = numpy_helper.to_array(node.attribute[0].t)
                return value
    return None


def readers_of(graph: GraphProto, name: str) -> list[NodeProto]:
    """The nodes that read a tensor, inside others too."""
    return [node for part in graphs_of(graph) for node in part.node if name in node.input]


class Chain:
    """Nodes one after the other, with names that the graph does not have."""

    def __init__(self, graph: GraphProto, like: str) -> None:
        self._graph, self._like = graph, like
        self._taken = names_in(graph) | {node.name for part in graphs_of(graph) for node in part.node}
        self.nodes: list[NodeProto] = []

    def name(self, what: str) -> str:
        """A new name of the tensor's."""
        return take_name(f"{self._like}/{what}", self._taken)

    def add(self, op: str, source: str, *more: str, **attributes: Any) -> str:
        """Append a node; returns its output."""
        target = self.name(op.lower())
        node = helper.make_node(op, [source, *more], [target], name=self.name(op), **attributes)
        self.nodes.append(node)
        return target

    def constant(self, values: Array | np.generic, what: str) -> str:
        """A new initializer."""
        name = self.name(what)
        self._graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
        return name


def _retype(value: ValueInfoProto, dtype: int, *, nhwc: bool) -> None:
    kind = value.type.tensor_type
    kind.elem_type = dtype
    if nhwc:
        refill(kind.shape.dim, [kind.shape.dim[axis] for axis in TO_NHWC])


def keep_value(graph: GraphProto, value: ValueInfoProto, name: str) -> None:
    """What was known of the tensor stays known under its new name."""
    refill(graph.value_info, [item for item in graph.value_info if item.name != value.name])
    kept = graph.value_info.add()
    kept.CopyFrom(value)
    kept.name = name


def type_input(graph: GraphProto, edit: Edit) -> None:
    """Make the new input, and the model's own of it, in place."""
    tensor, value = edit.tensor, edit.value
    held, given = value.type.tensor_type.elem_type, edit.graph_dtype
    nhwc = tensor.layout == "nhwc"
    if given == held and not nhwc and not tensor.mean:
        return
    chain = Chain(graph, tensor.name)
    last, current = tensor.name, given
    computed = TensorProto.FLOAT if tensor.mean or tensor.scale is not None else held
    if current != computed:
        last, current = chain.add("Cast", last, to=computed), computed
    if tensor.scale is not None:
        last = chain.add("Mul", last, chain.constant(np.float32(tensor.scale), "scale"))
    if nhwc:
        last = chain.add("Transpose", last, perm=TO_NCHW)
    if tensor.mean:
        axes = (-1, *[1] * (len(shape_of(value) or ()) - 2)) if len(tensor.mean) > 1 else ()
        mean, factor = (
            np.asarray(numbers, np.float64).astype(np.float32).reshape(axes)
            for numbers in (tensor.mean, [1.0 / one for one in tensor.std])
        )
        if any(tensor.mean):
            last = chain.add("Sub", last, chain.constant(mean, "mean"))
        last = chain.add("Mul", last, chain.constant(factor, "factor"))
    if current != held:
        last = chain.add("Cast", last, to=held)
    rename_uses(graph, {tensor.name: last}, makers=False)
    keep_value(graph, value, last)
    for place, node in enumerate(chain.nodes):
        graph.node.insert(place, node)
    _retype(value, given, nhwc=nhwc)


def type_output(graph: GraphProto, edit: Edit) -> None:
    """Make the new output of the model's own, in place."""
    tensor, value = edit.tensor, edit.value
    held, given = value.type.tensor_type.elem_type, edit.graph_dtype
    nhwc = tensor.layout == "nhwc"
    if given == held and not nhwc:
        return
    chain = Chain(graph, tensor.name)
    own = chain.name("computed")
    rename_uses(graph, {tensor.name: own}, makers=True)
    keep_value(graph, value, own)
    last = chain.add("Transpose", own, perm=TO_NHWC) if nhwc else own
    if tensor.scale is not None:
        scale, zero = chain.constant(np.float32(tensor.scale), "scale"), chain.constant(np.int8(0), "zero")
        chain.add("QuantizeLinear", last, scale, zero)
    elif given != held:
        chain.add("Cast", last, to=given)
    chain.nodes[-1].output[0] = tensor.name
    graph.node.extend(chain.nodes)
    _retype(value, given, nhwc=nhwc)
