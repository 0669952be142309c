"""The request to placement, and the plan that it returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from trtopt.precision.placement.view import Node, View
from trtopt.records.precision import PLAIN, Decision, Forms

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
        return _matching(node, self.exclude)

    def includes(self, node: Node) -> str | None:
        """The pattern by which the user wants this node quantised."""
        return _matching(node, self.include)


def _matching(node: Node, patterns: tuple[str, ...]) -> str | None:
    """The first that fits its name, or is that name to the letter (names may hold [), or its operator."""
    return next((p for p in patterns if p in (node.name, node.op_type) or fnmatchcase(node.name, p)), None)


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
    def quantised(self) -> tuple[Decision, ...]:
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

    def is_quantised(self, node: Node | None) -> bool:
        """Whether the node has been decided for Q/DQ."""
        return node is not None and node.name in self.decisions and self.decisions[node.name].quantised

    def quantise(self, node: Node, rule: str, reason: str) -> None:
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

    def reads_quantised(self, tensor: str) -> bool:
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
