"""The most that devices do: by their data sheets, and as probes have measured it.

Data sheets give rates of matrix products with structured sparsity, which is not used here, or without; the
table has the rates without it, which are half as high.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from trtopt.records import DevicePeaks, Peak, ProfiledLayer

_H200_SHEET = "NVIDIA H200 Tensor Core GPU Datasheet, SXM, without sparsity"
_H100_SHEET = "NVIDIA H100 Tensor Core GPU Datasheet, SXM, without sparsity"
_A100_SHEET = (
    "NVIDIA A100 Tensor Core GPU Datasheet, without sparsity (https://www.nvidia.com/content/dam/en-zz/"
    "Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf)"
)
_L4_SHEET = "NVIDIA L4 Tensor Core GPU Datasheet, without sparsity"
_L40S_SHEET = "NVIDIA L40S GPU Datasheet, without sparsity"
_T4_SHEET = "NVIDIA T4 Tensor Core GPU Datasheet"

_HOPPER = {
    "float32": 494.5,  # as TF32, which TensorRT uses by default
    "float16": 989.5,
    "bfloat16": 989.5,
    "float8_e4m3fn": 1979.0,
    "int8": 1979.0,
}
_AMPERE = {"float32": 156.0, "float16": 312.0, "bfloat16": 312.0, "int8": 624.0}
_L4 = {"float32": 60.0, "float16": 121.0, "bfloat16": 121.0, "float8_e4m3fn": 242.5, "int8": 242.5}
_L40S = {"float32": 183.0, "float16": 362.0, "bfloat16": 362.0, "float8_e4m3fn": 733.0, "int8": 733.0}
_T4 = {"float32": 8.1, "float16": 65.0, "int8": 130.0}


def _peaks(device: str, source: str, gigabytes_s: float, teraflops: dict[str, float]) -> DevicePeaks:
    flops = {dtype: Peak(value=rate * 1e12, source=source) for dtype, rate in teraflops.items()}
    return DevicePeaks(device=device, bandwidth=Peak(value=gigabytes_s * 1e9, source=source), flops=flops)


_TABLE = (
    _peaks("NVIDIA H200", _H200_SHEET, 4800, _HOPPER),
    _peaks("NVIDIA H100 80GB HBM3", _H100_SHEET, 3350, _HOPPER),
    _peaks("NVIDIA A100-SXM4-80GB", _A100_SHEET, 2039, _AMPERE),
    _peaks("NVIDIA A100-SXM4-40GB", _A100_SHEET, 1555, _AMPERE),
    _peaks("NVIDIA A100 80GB PCIe", _A100_SHEET, 1935, _AMPERE),
    _peaks("NVIDIA L4", _L4_SHEET, 300, _L4),
    _peaks("NVIDIA L40S", _L40S_SHEET, 864, _L40S),
    _peaks("Tesla T4", _T4_SHEET, 320, _T4),
)


def peaks_of(device: str) -> DevicePeaks | None:
    """What the table has of a device by its driver's name for it; None for one that it does not know."""
    return next((row for row in _TABLE if row.device.lower() == device.lower()), None)


def together(measured: DevicePeaks | None, sheet: DevicePeaks | None) -> DevicePeaks | None:
    """Measured peaks, and those of the data sheet for types that no probe has measured."""
    if measured is None or sheet is None:
        return measured or sheet
    return msgspec.structs.replace(measured, flops=sheet.flops | measured.flops)


def matrix_peak(layers: Sequence[ProfiledLayer], dtype: str, source: str) -> Peak | str:
    """The rate of the layer that holds a probe's one product, or why it is not the rate of `dtype`.

    Of several layers that cover the product the slowest is it: the others move its operands.
    """
    holding = [layer for layer in layers if "MatMul" in layer.onnx_ops and not layer.is_reformat and layer.ms]
    if not holding:
        return "no layer covers the product"
    product = max(holding, key=lambda layer: layer.ms or 0.0)
    if product.dtype and product.dtype != dtype:
        return f"the product ran in {product.dtype}"
    if product.cost is None or not product.ms:
        return "the product's operations are not known"
    by = f"{source} ({product.tactic})" if product.tactic else source
    return Peak(value=product.cost.flops / (product.ms / 1e3), source=by)
