"""How fast a layer could run at best: max(operations / peak rate, bytes / bandwidth).

Williams, Waterman, Patterson: Roofline: an insightful visual performance model (2009). The rate is that of
matrix products in the type that the layer ran in; a layer below its bandwidth's floor had its data in cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from trtopt.records import DevicePeaks, LayerCost, ProfiledLayer, RooflineTotal

FURTHEST = 5


def floor_of(cost: LayerCost, dtype: str, peaks: DevicePeaks | None) -> LayerCost:
    """The cost with its floor in milliseconds; without one where the device's peaks are unknown.

    A floor must not be too high: where the type's rate is unknown the fastest one counts, where all are, the
    bandwidth.
    """
    if peaks is None:
        return cost
    known = peaks.flops.get(dtype)
    rate = known.value if known else max((peak.value for peak in peaks.flops.values()), default=None)
    compute = cost.flops / rate * 1e3 if rate else 0.0
    memory = cost.bytes_moved / peaks.bandwidth.value * 1e3
    return msgspec.structs.replace(
        cost, floor_ms=max(compute, memory), bound="compute" if compute > memory else "memory"
    )


def with_floors(layers: Sequence[ProfiledLayer], peaks: DevicePeaks | None) -> tuple[ProfiledLayer, ...]:
    """Layers with their floors; the type is the one that ran, or if unknown the requested one."""
    return tuple(
        layer
        if layer.cost is None
        else msgspec.structs.replace(
            layer, cost=floor_of(layer.cost, layer.dtype or layer.requested_dtype, peaks)
        )
        for layer in layers
    )


def above_floor_ms(layer: ProfiledLayer) -> float:
    """Milliseconds over the floor. A reformat's floor is 0: the ONNX graph does not require it."""
    if layer.ms is None:
        return 0.0
    if layer.is_reformat:
        return layer.ms
    floor = layer.cost.floor_ms if layer.cost is not None else None
    return layer.ms - floor if floor is not None else 0.0


def furthest_above(layers: Sequence[ProfiledLayer], count: int = FURTHEST) -> tuple[str, ...]:
    """The layers with the most time above their floor; none where no floor is known."""
    if not any(layer.cost is not None and layer.cost.floor_ms is not None for layer in layers):
        return ()
    ordered = sorted(layers, key=lambda layer: (-above_floor_ms(layer), layer.name))
    return tuple(layer.name for layer in ordered[:count] if above_floor_ms(layer) > 0)


def total(layers: Sequence[ProfiledLayer]) -> RooflineTotal:
    """All layers whose cost is known, together; a floor only if each of them has one."""
    costs = [layer.cost for layer in layers if layer.cost is not None]
    floors = [cost.floor_ms for cost in costs if cost.floor_ms is not None]
    measured = sum(layer.ms or 0.0 for layer in layers)
    costed = sum(layer.ms or 0.0 for layer in layers if layer.cost is not None or layer.is_reformat)
    return RooflineTotal(
        flops=sum(cost.flops for cost in costs),
        bytes_moved=sum(cost.bytes_moved for cost in costs),
        floor_ms=sum(floors) if costs and len(floors) == len(costs) else None,
        measured_ms=measured,
        costed_share=costed / measured if measured else 0.0,
    )
