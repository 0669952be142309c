"""How fast a layer could run at best: max(operations / peak rate, bytes / bandwidth).

Williams, Waterman, Patterson: Roofline: an insightful visual performance model (2009). The rate is that of
matrix products in the type that the layer ran in; a layer below its bandwidth's floor had its data in cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from trtopt.records import DevicePeaks, LayerCost, Peak, ProfiledLayer, RooflineTotal

_MEASURED = "measured by trtopt on one H200"
_HOPPER = "NVIDIA H100/H200 SXM datasheet, dense"
_AMPERE = "NVIDIA A100 datasheet, dense"
_L4 = "NVIDIA L4 datasheet, dense"
_L40S = "NVIDIA L40S datasheet, dense"
_T4 = "NVIDIA T4 datasheet"
_A10 = "NVIDIA A10 datasheet, dense"
FURTHEST = 5


def _peaks(device: str, source: str, gigabytes_s: float, **teraflops: float) -> DevicePeaks:
    flops = {dtype: Peak(value=rate * 1e12, source=source) for dtype, rate in teraflops.items()}
    return DevicePeaks(device=device, bandwidth=Peak(value=gigabytes_s * 1e9, source=source), flops=flops)


_HOPPER_FLOPS = {
    "float32": 494.5,  # as TF32, which TensorRT uses by default
    "float16": 989.5,
    "bfloat16": 989.5,
    "float8_e4m3fn": 1979.0,
    "int8": 1979.0,
}
_H200 = _peaks("NVIDIA H200", _HOPPER, 4800, **_HOPPER_FLOPS)
_TABLE = (
    msgspec.structs.replace(
        _H200,
        bandwidth=Peak(value=4196e9, source=f"{_MEASURED}: device copy, read and write"),
        flops=_H200.flops | {"float16": Peak(value=747e12, source=f"{_MEASURED}: matrix product")},
    ),
    _peaks("NVIDIA H100 80GB HBM3", _HOPPER, 3350, **_HOPPER_FLOPS),
    _peaks("NVIDIA A100-SXM4-80GB", _AMPERE, 2039, float32=156, float16=312, bfloat16=312, int8=624),
    _peaks("NVIDIA A100-SXM4-40GB", _AMPERE, 1555, float32=156, float16=312, bfloat16=312, int8=624),
    _peaks("NVIDIA A100 80GB PCIe", _AMPERE, 1935, float32=156, float16=312, bfloat16=312, int8=624),
    _peaks("NVIDIA L4", _L4, 300, float32=60, float16=121, bfloat16=121, float8_e4m3fn=242.5, int8=242.5),
    _peaks("NVIDIA L40S", _L40S, 864, float32=183, float16=362, bfloat16=362, float8_e4m3fn=733, int8=733),
    _peaks("NVIDIA A10", _A10, 600, float32=62.5, float16=125, bfloat16=125, int8=250),
    _peaks("Tesla T4", _T4, 320, float32=8.1, float16=65, int8=130),
)


def peaks_of(device: str) -> DevicePeaks | None:
    """What the table has of a device by its driver's name for it; None for one that it does not know."""
    return next((row for row in _TABLE if row.device.lower() == device.lower()), None)


def floor_of(cost: LayerCost, dtype: str, peaks: DevicePeaks | None) -> LayerCost:
    """The cost with its floor in milliseconds; without one where the device's peaks are unknown."""
    if peaks is None:
        return cost
    known = peaks.flops.get(dtype)  # where the type is not known the fastest: a floor must not be too high
    rate = known.value if known else max(peak.value for peak in peaks.flops.values())
    compute = cost.flops / rate * 1e3
    memory = cost.bytes_moved / peaks.bandwidth.value * 1e3
    return msgspec.structs.replace(
        cost, floor_ms=max(compute, memory), bound="compute" if compute > memory else "memory"
    )


def with_floors(layers: Sequence[ProfiledLayer], peaks: DevicePeaks | None) -> tuple[ProfiledLayer, ...]:
    """Layers with their floors; the type is the one that ran, or was asked for where that cannot be told."""
    return tuple(
        layer
        if layer.cost is None
        else msgspec.structs.replace(
            layer, cost=floor_of(layer.cost, layer.dtype or layer.asked_dtype, peaks)
        )
        for layer in layers
    )


def above_floor_ms(layer: ProfiledLayer) -> float:
    """Milliseconds over the floor. A reformat's floor is 0: the ONNX graph does not ask for it."""
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
