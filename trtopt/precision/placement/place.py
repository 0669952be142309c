"""All placement rules in their order, and which forms a graph has a place for."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from trtopt.precision.placement import between, products
from trtopt.precision.placement.draft import (
    ACTIVATIONS,
    NORMS,
    RESHAPES,
    Draft,
    Node,
    PlacementOptions,
    Plan,
    View,
    check_patterns,
    is_op,
)
from trtopt.precision.placement.forms import CHOICES, PLAIN, Forms
from trtopt.precision.placement.products import is_own_gate
from trtopt.targets import Target

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


def keep_excluded(draft: Draft) -> None:
    """Decide what the user keeps; the rules behind leave it alone."""
    for node in draft.view.nodes:
        if (pattern := draft.options.excludes(node)) and _has_floats(draft.view, node):
            draft.keep(node, "excluded", f"--exclude {pattern}")


def keep_rest(draft: Draft) -> None:
    """Decide every node of floating-point numbers that is left."""
    for node in draft.view.nodes:
        if _has_floats(draft.view, node):
            draft.keep(node, "float", _reason(draft.view, node))


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


RULES = (
    keep_excluded,
    products.apply_weighted,
    products.apply_attention,
    products.apply_gates,
    between.apply_residual,
    between.apply_between,
    keep_rest,
)


def place(view: View, options: PlacementOptions) -> Plan:
    """Decide for each node of floating-point numbers whether it is quantised, and on which edges Q/DQ go."""
    check_patterns(view.nodes, options.exclude, options.include)
    draft = Draft(view, options)
    for rule in RULES:
        rule(draft)
    return draft.plan()


def _has(*ops: str) -> Callable[[View], bool]:
    return lambda view: any(is_op(node, *ops) for node in view.nodes)


def _has_mergeable_products(view: View) -> bool:
    """Whether several MatMuls with constant weights read one tensor."""
    products = [node for node in view.nodes if is_op(node, "MatMul") and view.computed_inputs(node) == [0]]
    return len({node.input[0] for node in products}) < len(products)


_PATTERNS: dict[str, Callable[[View], bool]] = {
    "qkv": _has_mergeable_products,
    "gelu": _has("Erf", "Gelu"),
    "rest": _has(*NORMS),
    "smoothing": _has(*NORMS),
}
"""Where a choice that is not one of placement changes the graph."""
_OF_FP32_SCALES = {"gelu", "rest"}
"""Forms in which FP16 stands between Q/DQ: where scales are 16-bit all of the rest is FP16 anyway."""


def applicable(view: View, target: Target, exclude: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """By form, the choices besides the default that change the graph."""
    plain = place(view, PlacementOptions("int8", exclude))
    found: dict[str, tuple[str, ...]] = {}
    for name, choices in CHOICES.items():
        if name in _PATTERNS:
            is_open = not (name in _OF_FP32_SCALES and target.half_scales) and _PATTERNS[name](view)
            kept = choices[1:] if is_open else ()
        else:
            others = {
                one: PlacementOptions("int8", exclude, forms=with_choice(PLAIN, name, one))
                for one in choices[1:]
            }
            kept = tuple(one for one, options in others.items() if place(view, options).edges != plain.edges)
        if kept:
            found[name] = kept
    return found


def with_choice(forms: Forms, name: str, choice: str) -> Forms:
    """The forms with another choice of one."""
    return msgspec.structs.replace(forms, **{name: choice})
