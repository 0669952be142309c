"""The precision receipt: in which types an engine ran, by time and by weights, against what was asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trtopt.inspect.join import UNKNOWN, bits
from trtopt.records import Fallback, PrecisionReceipt, ProfiledLayer

TOLERATED = 0.01
"""The share of weights that may run wider than asked without making a build fail."""


def receipt(layers: Sequence[ProfiledLayer]) -> PrecisionReceipt:
    """Shares by type. Weights count by element; time needs at least one timed layer."""
    total_ms = sum(layer.ms or 0.0 for layer in layers)
    weighted = [layer for layer in layers if layer.weights_count and not layer.is_reformat]
    total_weights = sum(layer.weights_count for layer in weighted)
    fallbacks = (
        Fallback(
            layer=layer.name,
            asked=layer.asked_dtype,
            ran=layer.dtype,
            share_of_time=(layer.ms or 0.0) / total_ms if total_ms else None,
            share_of_weights=layer.weights_count / total_weights,
        )
        for layer in weighted
        if is_fallback(layer)
    )
    return PrecisionReceipt(
        time_ran=_shares((layer.dtype, layer.ms or 0.0) for layer in layers) if total_ms else None,
        weights_ran=_shares((layer.dtype, layer.weights_count) for layer in weighted),
        weights_asked=_shares((layer.asked_dtype, layer.weights_count) for layer in weighted),
        fallbacks=tuple(sorted(fallbacks, key=lambda one: (-one.share_of_weights, one.layer))),
    )


def is_fallback(layer: ProfiledLayer) -> bool:
    """Whether a layer ran wider than asked; where either type cannot be told, it is not held against it."""
    asked, ran = bits(layer.asked_dtype), bits(layer.dtype)
    return bool(asked and ran) and ran > asked


def share_fallen_back(found: PrecisionReceipt) -> float:
    """The share of weights that ran wider than asked."""
    return sum(one.share_of_weights for one in found.fallbacks)


def _shares(amounts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Type → share, the largest first."""
    by_type: dict[str, float] = {}
    for dtype, amount in amounts:
        by_type[dtype or UNKNOWN] = by_type.get(dtype or UNKNOWN, 0.0) + amount
    total = sum(by_type.values())
    ordered = sorted(by_type.items(), key=lambda item: (-item[1], item[0]))
    return {dtype: amount / total for dtype, amount in ordered if amount} if total else {}
