"""Colours that mean the same on every chart of a page: one per type, one per batch size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trtopt.report.html.blocks import Spec

_TYPES = {
    "float32": "#64a0d8",
    "tf32": "#64a0d8",
    "float16": "#68b87e",
    "bfloat16": "#4fb5b5",
    "int8": "#f0a050",
    "float8": "#e08fbd",
    "int4": "#e07f7f",
    "float4": "#ae90d6",
}
"""By the start of a type's name. Light enough for dark labels, dark enough for a white page."""

_OTHER = "#9aa4ae"
_BATCHES = ("#8f7be0", "#4f8fdc", "#2fa3ab", "#4dab5c", "#c99a2c", "#e0703f")
"""From small to large."""

SIDES = ("#8a96a3", "#f0a050")
"""A, the baseline, and B."""


def type_colour(dtype: str) -> str:
    """The colour of a type; a requested one, in brackets, has that of the type."""
    name = dtype.strip("()")
    return next((colour for start, colour in _TYPES.items() if name.startswith(start)), _OTHER)


def type_scale(types: Iterable[str]) -> Spec:
    """A colour scale for the types on show, in the order of the table above."""
    order = [*_TYPES.values(), _OTHER]
    domain = sorted(set(types), key=lambda dtype: (order.index(type_colour(dtype)), dtype))
    return {"domain": domain, "range": [type_colour(dtype) for dtype in domain]}


def batch_scale(batches: Iterable[int]) -> Spec:
    """A colour scale of labels `batch N`, for all batch sizes of the page, from small to large."""
    sizes = sorted(set(batches))
    return {"domain": [f"batch {size}" for size in sizes], "range": _spread(len(sizes))}


def _spread(count: int) -> Sequence[str]:
    """That many colours, as far apart as they can be; beyond the table's length they repeat."""
    if count > len(_BATCHES):
        return [_BATCHES[place % len(_BATCHES)] for place in range(count)]
    last = len(_BATCHES) - 1
    return [_BATCHES[round(place * last / max(count - 1, 1))] for place in range(count)]
