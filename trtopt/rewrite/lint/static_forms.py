"""Static forms of operators whose output's size depends on data, with what both were measured to take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtopt.rewrite.evidence import AUDITED


@dataclass(frozen=True)
class Price:
    """Medians in ms of small graphs of either form, as `benchmarks/kernels` measured them."""

    dynamic_ms: float
    static_ms: float
    subject: str


_MASK = "a mask with Where"
_FIXED = "a size that is a constant"
_FORMS = {
    "NonZero": _MASK,
    "Compress": _MASK,
    "NonMaxSuppression": "the plugin EfficientNMS_TRT, which returns a fixed number of boxes and a count",
    "TopK": "a constant K",
}
_MEASURED = {
    "NonZero": Price(0.0642, 0.0083, "half of 8,192 rows of 4"),
    "NonMaxSuppression": Price(0.4859, 0.4074, "1,000 crowded boxes of one class"),
}
"""On one H200 (benchmarks/kernels/results); only static forms ran as a CUDA graph."""
PRICES: Mapping[tuple[str, str], Price] = {
    (op, target): price for op, price in _MEASURED.items() for target in AUDITED
}
"""By operator and target."""


def advice_for(op: str, target: str) -> str:
    """The static form of an operator, and its price on that target if it has been measured."""
    form = f"use {_FORMS.get(op, _FIXED)}"
    price = PRICES.get((op, target))
    if price is None:
        return f"{form}; what that gains has not been measured on TensorRT {target}"
    return (
        f"{form}: {price.static_ms:.3f} ms instead of {price.dynamic_ms:.3f} on TensorRT {target}, "
        f"measured for {price.subject}"
    )
