"""Which forms a graph has a place for: a choice counts where it changes what is written."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from trtopt.precision.placement.place import place
from trtopt.precision.placement.placement_plan import PlacementOptions
from trtopt.precision.placement.view import View, is_op
from trtopt.records.precision import CHOICES, PLAIN, Forms
from trtopt.targets import Target

_NORMS = ("LayerNormalization", "RMSNormalization")


def _has(*ops: str) -> Callable[[View], bool]:
    return lambda view: any(is_op(node, *ops) for node in view.nodes)


def _has_mergeable_products(view: View) -> bool:
    """Whether several MatMuls with constant weights read one tensor."""
    products = [node for node in view.nodes if is_op(node, "MatMul") and view.computed_inputs(node) == [0]]
    return len({node.input[0] for node in products}) < len(products)


_PATTERNS: dict[str, Callable[[View], bool]] = {
    "qkv": _has_mergeable_products,
    "gelu": _has("Erf", "Gelu"),
    "rest": _has(*_NORMS),
    "smoothing": _has(*_NORMS),
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
            kept = tuple(one for one in choices[1:] if _plan(view, exclude, name, one) != plain.edges)
        if kept:
            found[name] = kept
    return found


def _plan(view: View, exclude: tuple[str, ...], name: str, choice: str) -> object:
    return place(view, PlacementOptions("int8", exclude, forms=with_choice(PLAIN, name, choice))).edges


def with_choice(forms: Forms, name: str, choice: str) -> Forms:
    """The forms with another choice of one."""
    return msgspec.structs.replace(forms, **{name: choice})
