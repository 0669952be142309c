"""A plan for a model that brought Q/DQ along: what training placed stays, what it missed is added."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from trtopt.precision.existing_qdq import Existing
from trtopt.precision.placement.draft import (
    ACTIVATIONS,
    Edge,
    PlacementOptions,
    Plan,
    View,
    WeightEdge,
    is_op,
)
from trtopt.precision.placement.place import place
from trtopt.precision.placement.products import is_own_gate

_OURS = {"residual", "pad"}
"""Where our rules replace what was there: Q/DQ on both branches of an Add, or behind a Pad, cost a kernel."""
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add")


@dataclass(frozen=True)
class Completed:
    """The plan, how many edges were added to the model's own or dropped, and tensors that lack a range.

    `turned` are nodes whose weight has its scales along another axis than the output channels.
    """

    plan: Plan
    added: int
    dropped: int
    unknown: tuple[str, ...]
    turned: tuple[str, ...]


def complete(view: View, options: PlacementOptions, existing: Existing, *, keep_unknown: bool) -> Completed:
    """The rules' plan for the layers that training quantised, with the model's own pairs kept.

    Edges are identified by (node, input). An edge that a rule adds takes the scale that the same tensor, or
    one that shares its scale, has already; `unknown` are tensors that have none, and unless `keep_unknown`
    (there is data to calibrate them on) their edges are left out.
    """
    trained = frozenset(node for node, _ in (*existing.edges, *existing.weights))
    plan = place(view, replace(options, trained=trained))
    rules = {item.node: item.rule for item in plan.quantised}
    ours = {(edge.node, edge.index) for edge in plan.edges}
    behind_pads = {name for node in view.nodes if rules.get(node.name) == "pad" for name in node.output}
    excluded = {node.name for node in view.nodes if options.excludes(node)}
    tensors = {(node.name, i): name for node in view.nodes for i, name in enumerate(node.input)}
    kept = [
        Edge(tensors[key], *key)
        for key in existing.edges
        if key not in ours and key[0] not in excluded
        if rules.get(key[0]) not in _OURS and tensors[key] not in behind_pads
        if not _is_inside_a_kernel(view, tensors[key], key[0], rules.keys())
    ]
    known = known_ranges(plan, existing)
    edges = tuple(e for e in plan.edges if keep_unknown or e.tensor in known or e.tensor in plan.fixed)
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
    return Completed(replace(plan, edges=ordered, weights=weights), added, dropped, unknown, turned)


def _is_turned(item: WeightEdge, existing: Existing) -> bool:
    """Whether the model's own scales of a weight lie along another axis than a kernel's result has them."""
    axis = existing.axes.get((item.node, item.index))
    return None not in (axis, item.axis) and axis != item.axis


def _is_inside_a_kernel(view: View, tensor: str, reader: str, quantised: Set[str]) -> bool:
    """Whether the tensor lies between a quantised layer, or its Add, and the activation that fuses with it.

    x·Sigmoid(x) is such an activation: Q/DQ inside it would part it from its convolution.
    """
    node, maker = view.nodes[view.order[reader]], view.maker.get(tensor)
    if maker is None or not (is_op(node, *ACTIVATIONS) or is_own_gate(view, node)):
        return False
    if is_op(maker, *ACTIVATIONS):
        return _is_inside_a_kernel(view, maker.input[0], maker.name, quantised)
    return maker.name in quantised and is_op(maker, *_LAYERS)


def known_ranges(plan: Plan, existing: Existing) -> dict[str, float]:
    """amax by tensor, also of tensors that share a scale with one that has it."""
    known = dict(existing.tensors)
    for group in plan.groups:
        amax = max((known[name] for name in group if name in known), default=None)
        if amax is not None:
            known |= dict.fromkeys(group - known.keys(), amax)
    return known
