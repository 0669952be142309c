"""The precision receipt: in which types an engine ran, by time and by weights, against the requested types.

The graph's types bind a strongly typed builder: a layer that ran wider is a fault. A weakly typed one
(TensorRT 8.6) takes the graph's 16-bit types as permission: it times both, and may choose FP32 for single
layers because that was faster. Such layers are reported. They are no fault up to half of the weights that
are requested in 16 bits. Types of 8 bits and fewer are written into the graph by Q/DQ, which bind a weakly
typed builder too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trtopt.inspect.layers import UNKNOWN, bits
from trtopt.records import Fallback, PrecisionReceipt, ProfiledLayer

TOLERATED = 0.01
"""The share of weights that may run wider than is binding without making a build fail."""

IN_SUBSTANCE = 0.5
"""The share of the weights requested in 16 bits that a weakly typed builder may choose to run wider."""

_CHOICE_BITS = 16


def receipt(layers: Sequence[ProfiledLayer], *, weakly_typed: bool = False) -> PrecisionReceipt:
    """Shares by type. Weights count by element; time needs at least one timed layer.

    `weakly_typed`: the builder takes the graph's 16-bit types as permission.
    """
    total_ms = sum(layer.ms or 0.0 for layer in layers)
    weighted = [layer for layer in layers if layer.weights_count and not layer.is_reformat]
    total_weights = sum(layer.weights_count for layer in weighted)
    fallbacks = (
        Fallback(
            layer=layer.name,
            nodes=layer.working_nodes,
            requested=layer.requested_dtype,
            ran=layer.dtype,
            share_of_time=(layer.ms or 0.0) / total_ms if total_ms else None,
            share_of_weights=layer.weights_count / total_weights,
            chosen=weakly_typed and bits(layer.requested_dtype) == _CHOICE_BITS,
        )
        for layer in weighted
        if is_fallback(layer)
    )
    return PrecisionReceipt(
        time_ran=_shares((layer.dtype, layer.ms or 0.0) for layer in layers) if total_ms else None,
        weights_ran=_shares((layer.dtype, layer.weights_count) for layer in weighted),
        weights_requested=_shares((layer.requested_dtype, layer.weights_count) for layer in weighted),
        weighted_layers=len(weighted),
        fallbacks=tuple(sorted(fallbacks, key=lambda one: (-one.share_of_weights, one.layer))),
    )


def is_fallback(layer: ProfiledLayer) -> bool:
    """Whether a layer ran wider than requested; not if either type is unknown."""
    requested, ran = bits(layer.requested_dtype), bits(layer.dtype)
    return bool(requested and ran) and ran > requested


def faults(found: PrecisionReceipt) -> tuple[Fallback, ...]:
    """The fallbacks for which a build fails; none, if the requested precision was reached.

    Binding ones beyond `TOLERATED` of all weights, else chosen ones beyond `IN_SUBSTANCE` of those weights
    for which the builder had the choice.
    """
    binding = tuple(one for one in found.fallbacks if not one.chosen)
    if share_of(binding) > TOLERATED:
        return binding
    chosen = tuple(one for one in found.fallbacks if one.chosen)
    permitted = sum(share for dtype, share in found.weights_requested.items() if bits(dtype) == _CHOICE_BITS)
    return chosen if chosen and share_of(chosen) > IN_SUBSTANCE * permitted else ()


def share_of(fallbacks: Sequence[Fallback]) -> float:
    """Their share of all weights."""
    return sum(one.share_of_weights for one in fallbacks)


def _shares(amounts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Type → share, the largest first."""
    by_type: dict[str, float] = {}
    for dtype, amount in amounts:
        by_type[dtype or UNKNOWN] = by_type.get(dtype or UNKNOWN, 0.0) + amount
    total = sum(by_type.values())
    ordered = sorted(by_type.items(), key=lambda item: (-item[1], item[0]))
    return {dtype: amount / total for dtype, amount in ordered if amount} if total else {}
