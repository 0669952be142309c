"""All placement rules in their order."""

from __future__ import annotations

from trtopt.errors import UsageError
from trtopt.precision.placement import attention, between, gates, residual, weighted
from trtopt.precision.placement.gates import is_own_gate
from trtopt.precision.placement.placement_plan import Draft, PlacementOptions, Plan
from trtopt.precision.placement.view import ACTIVATIONS, RESHAPES, Node, View, is_op

_REASONS = {
    **dict.fromkeys(("Softmax", "LogSoftmax"), "it needs the range of float"),
    **dict.fromkeys(
        ("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"),
        "normalisation needs the range of float",
    ),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "Embedding"), "it is a look-up"),
    "BatchNormalization": "it could not be folded into a convolution",
}
_MOVERS = RESHAPES | {"Transpose", "Slice", "Split", "Expand", "Pad", "DepthToSpace", "SpaceToDepth"}


def apply(draft: Draft) -> None:
    """Decide every node of floating-point numbers that is left."""
    for node in draft.view.nodes:
        if node.name not in draft.decisions and _has_floats(draft.view, node):
            pattern = draft.options.excludes(node)
            draft.keep(
                node,
                "excluded" if pattern else "float",
                f"--exclude {pattern}" if pattern else _reason(draft.view, node),
            )


def _has_floats(view: View, node: Node) -> bool:
    kinds = [view.element_type(name) for name in node.output if name]
    return any(view.is_float(name) for name in node.output if name) or not any(kinds)


def _reason(view: View, node: Node) -> str:
    if is_op(node, *_REASONS):
        return _REASONS[node.op_type]
    if is_op(node, *ACTIVATIONS) or is_own_gate(view, node):
        return "it fuses with the layer in front of it, and the next Q with both"
    if is_op(node, *_MOVERS):
        return "it merely moves values: a Q behind it moves in front of it by itself"
    return f"there is no rule for {node.op_type}"


RULES = (weighted.apply, attention.apply, gates.apply, residual.apply, between.apply, apply)


def place(view: View, options: PlacementOptions) -> Plan:
    """Decide for each node of floating-point numbers whether it is quantised, and on which edges Q/DQ go."""
    for flag, patterns in (("--exclude", options.exclude), ("--include", options.include)):
        for pattern in patterns:
            alone = PlacementOptions(options.precision, (pattern,))
            if not any(alone.excludes(node) for node in view.nodes):
                raise UsageError(
                    f"{flag} {pattern}: no node has such a name or operator",
                    "give a node's name with * and ?, or an operator such as Conv",
                )
    draft = Draft(view, options)
    for rule in RULES:
        rule(draft)
    return draft.plan()
