"""The graph as placement's rules see it, what they decide, and the plan that comes of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

import onnx

from trtopt.errors import UsageError
from trtopt.onnxio.graph_walk import OWN_DOMAINS, reads_of
from trtopt.onnxio.shape_inference import FLOATS, inferred, tensor_types
from trtopt.precision.placement.forms import PLAIN, Forms
from trtopt.records.precision import Decision

Node: TypeAlias = onnx.NodeProto
Dims: TypeAlias = "tuple[int | None, ...]"

ACTIVATIONS = {
    "Relu", "LeakyRelu", "PRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Selu",
    "Mish", "Softplus", "Gelu", "Swish",
}  # fmt: skip
NORMS = ("LayerNormalization", "RMSNormalization")
RESHAPES = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"}


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
        self._types = tensor_types(inferred(model))

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

    def behind_moves(self, tensor: str) -> tuple[str, list[Node]]:
        """What the tensor is behind Identity and Transpose; and those Transposes, the last first."""
        transposes = []
        while (node := self.made_by(tensor, "Identity", "Transpose")) is not None:
            if node.op_type == "Transpose":
                transposes.append(node)
            tensor = node.input[0]
        return tensor, transposes

    def is_constant(self, tensor: str) -> bool:
        """Whether the tensor is an initializer, perhaps through Identity or Transpose."""
        return self.behind_moves(tensor)[0] in self.constants

    def shape(self, tensor: str) -> Dims | None:
        """The tensor's shape, None for axes that are not fixed; None if not even the rank is known."""
        if tensor in self.constants:
            return tuple(self.constants[tensor].dims)
        known = self._types.get(tensor)
        if known is None or not known.HasField("shape"):
            return None
        return tuple(
            int(axis.dim_value) if axis.HasField("dim_value") and axis.dim_value > 0 else None
            for axis in known.shape.dim
        )

    def element_type(self, tensor: str) -> int | None:
        """ONNX's number of the tensor's element type, if known."""
        known = self._types.get(tensor)
        return known.elem_type or None if known is not None else None

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


Precision = Literal["int8", "fp8", "int4"]
SOFTMAX_AMAX = 1.0
"""Softmax gives 0 … 1 whatever the data."""


@dataclass(frozen=True)
class PlacementOptions:
    """The precision and the user's patterns: node names or operators, with * and ?."""

    precision: Precision
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    forms: Forms = PLAIN
    trained: frozenset[str] | None = None
    """Nodes that the model itself quantised, if it did: all others are meant to be float."""

    def excludes(self, node: Node) -> str | None:
        """The pattern by which the user keeps this node in float."""
        return matching(node, self.exclude)

    def includes(self, node: Node) -> str | None:
        """The pattern by which the user wants this node quantised."""
        return matching(node, self.include)


def matching(node: Node, patterns: Sequence[str]) -> str | None:
    """The first that fits its name, or is that name to the letter (names may hold [), or its operator."""
    return next((p for p in patterns if p in (node.name, node.op_type) or fnmatchcase(node.name, p)), None)


def check_patterns(nodes: Iterable[Node], exclude: Sequence[str], include: Sequence[str]) -> None:
    """Refuse a pattern that matches no node: it would silently have no effect."""
    nodes = list(nodes)
    for flag, patterns in (("--exclude", exclude), ("--include", include)):
        for pattern in patterns:
            if not any(matching(node, (pattern,)) for node in nodes):
                raise UsageError(
                    f"{flag} {pattern}: no node has such a name or operator",
                    "give a node's name with * and ?, or an operator such as Conv",
                )


@dataclass(frozen=True)
class Edge:
    """A tensor on its way into one input of one node."""

    tensor: str
    node: str
    index: int


@dataclass(frozen=True)
class WeightEdge:
    """A constant input to be quantised along `axis` (None: one scale for all of it)."""

    node: str
    index: int
    axis: int | None


@dataclass(frozen=True)
class Plan:
    """Where Q/DQ go. `groups` are tensors that share one scale; `fixed` amax that need no calibration."""

    edges: tuple[Edge, ...]
    weights: tuple[WeightEdge, ...]
    groups: tuple[frozenset[str], ...]
    fixed: dict[str, float]
    decisions: tuple[Decision, ...]

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors whose ranges are needed, in the order of their first use."""
        return tuple(dict.fromkeys(edge.tensor for edge in self.edges if edge.tensor not in self.fixed))

    @property
    def quantized(self) -> tuple[Decision, ...]:
        """The decisions for Q/DQ."""
        return tuple(item for item in self.decisions if item.quantised)


@dataclass
class Draft:
    """A plan in the making: rules add edges and decide nodes, each node once."""

    view: View
    options: PlacementOptions
    edges: dict[tuple[str, int], Edge] = field(default_factory=dict)
    weights: list[WeightEdge] = field(default_factory=list)
    fixed: dict[str, float] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)
    _groups: list[set[str]] = field(default_factory=list)

    def is_quantized(self, node: Node | None) -> bool:
        """Whether the node has been decided for Q/DQ."""
        return node is not None and node.name in self.decisions and self.decisions[node.name].quantised

    def quantize(self, node: Node, rule: str, reason: str) -> None:
        """Decide for Q/DQ."""
        self.decisions[node.name] = Decision(
            node=node.name, op=node.op_type, quantised=True, rule=rule, reason=reason
        )

    def keep(self, node: Node, rule: str, reason: str) -> None:
        """Decide for float, unless something was decided before."""
        self.decisions.setdefault(
            node.name,
            Decision(node=node.name, op=node.op_type, quantised=False, rule=rule, reason=reason),
        )

    def put(self, node: Node, index: int) -> str:
        """Q/DQ on one input of a node; the tensor that it is on."""
        tensor = str(node.input[index])
        self.edges[node.name, index] = Edge(tensor, node.name, index)
        return tensor

    def reads_quantized(self, tensor: str) -> bool:
        """Whether any reader of the tensor reads it through Q/DQ."""
        return any((use.node.name, use.index) in self.edges for use in self.view.uses(tensor))

    def share_scale(self, *tensors: str) -> None:
        """Let these tensors, and all that share with them already, have one scale."""
        merged = set(tensors).union(*(group for group in self._groups if group & set(tensors)))
        self._groups = [group for group in self._groups if not group & merged] + [merged]

    def plan(self) -> Plan:
        """What was decided, in the order of the graph."""
        order = self.view.order
        return Plan(
            edges=tuple(sorted(self.edges.values(), key=lambda edge: (order[edge.node], edge.index))),
            weights=tuple(sorted(self.weights, key=lambda weight: order[weight.node])),
            groups=tuple(frozenset(group) for group in self._groups if len(group) > 1),
            fixed=dict(self.fixed),
            decisions=tuple(sorted(self.decisions.values(), key=lambda item: order[item.node])),
        )
