"""Read-only queries of placement on a graph."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TypeAlias

import onnx

from trtopt.onnxio.graph_walk import OWN_DOMAINS, reads_of
from trtopt.onnxio.shape_inference import inferred

Node: TypeAlias = onnx.NodeProto
Dims: TypeAlias = "tuple[int | None, ...]"

ACTIVATIONS = {
    "Relu", "LeakyRelu", "PRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Selu",
    "Mish", "Softplus", "Gelu", "Swish",
}  # fmt: skip
RESHAPES = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"}
FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


@dataclass(frozen=True)
class Use:
    """One reading of a tensor: the node and the position among its inputs (−1: inside its subgraph)."""

    node: Node
    index: int


class View:
    """A model's main graph with its wiring and shapes looked up once. Nodes must have unique names."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.nodes = list(graph.node)
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = {value.name for value in graph.input} - self.constants.keys()
        self.outputs = {value.name for value in graph.output}
        self.order = {node.name: index for index, node in enumerate(self.nodes)}
        self.maker = {name: node for node in self.nodes for name in node.output if name}
        self._uses: dict[str, list[Use]] = defaultdict(list)
        for node in self.nodes:
            for index, name in enumerate(node.input):
                self._uses[name].append(Use(node, index))
            for name in reads_of(node) - set(node.input):
                self._uses[name].append(Use(node, -1))
        known = inferred(model).graph
        values = (*known.input, *known.value_info, *known.output)
        self._types = {item.name: _described(item) for item in values if item.type.HasField("tensor_type")}

    def uses(self, tensor: str) -> list[Use]:
        """Who reads the tensor."""
        return self._uses.get(tensor, [])

    def only_use(self, tensor: str) -> Use | None:
        """The single reading of a tensor that is no output of the model."""
        uses = self.uses(tensor)
        return uses[0] if len(uses) == 1 and tensor not in self.outputs else None

    def made_by(self, tensor: str, *ops: str) -> Node | None:
        """The node that makes the tensor, if it is one of these standard operators (any, without)."""
        node = self.maker.get(tensor)
        return node if node is not None and (not ops or is_op(node, *ops)) else None

    def is_constant(self, tensor: str) -> bool:
        """Whether the tensor is an initializer, perhaps through Identity or Transpose."""
        while (node := self.made_by(tensor, "Identity", "Transpose")) is not None:
            tensor = node.input[0]
        return tensor in self.constants

    def shape(self, tensor: str) -> Dims | None:
        """The tensor's shape, None for axes that are not fixed; None if not even the rank is known."""
        if tensor in self.constants:
            return tuple(self.constants[tensor].dims)
        return self._types.get(tensor, (None, None))[1]

    def element_type(self, tensor: str) -> int | None:
        """ONNX's number of the tensor's element type, if known."""
        if tensor in self.constants:
            return int(self.constants[tensor].data_type)
        return self._types.get(tensor, (None, None))[0]

    def is_float(self, tensor: str) -> bool:
        """Whether the tensor holds floating-point numbers, as far as is known."""
        kind = self.element_type(tensor)
        return kind is None or kind in FLOATS

    def computed_inputs(self, node: Node) -> list[int]:
        """The positions of the node's inputs that are not constants."""
        return [index for index, name in enumerate(node.input) if name and not self.is_constant(name)]


def is_op(node: Node, *ops: str) -> bool:
    """Whether the node is one of these operators of ONNX's own."""
    return node.op_type in ops and node.domain in OWN_DOMAINS


def attribute(node: Node, name: str, default: int = 0) -> int:
    """An integer attribute."""
    return next((int(item.i) for item in node.attribute if item.name == name), default)


def _described(value: onnx.ValueInfoProto) -> tuple[int | None, Dims | None]:
    tensor = value.type.tensor_type
    dims = tuple(
        int(axis.dim_value) if axis.HasField("dim_value") and axis.dim_value > 0 else None
        for axis in tensor.shape.dim
    )
    return tensor.elem_type or None, dims if tensor.HasField("shape") else None
