"""What a node costs at least, operations and bytes, from shapes alone; and how fast a device does that.

A multiply-add counts as two operations. Formulas: a product of [M, K] and [K, N] takes 2·M·K·N; a convolution
2 · output elements · (input channels / groups) · kernel elements; a transposed one the same with the input's
elements and (output channels / groups). Elementwise operators take one operation an output element,
reductions and pools one an element read; normalisations and Softmax the number of passes in `_PER_ELEMENT`.
Operators that only move data take none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from math import prod

import msgspec

from trtopt.inspect.graph import DEQUANTIZE, QUANTIZE, Graph, Node
from trtopt.onnxio.element_types import bits_of
from trtopt.onnxio.graph_walk import ELEMENTWISE, REDUCTIONS
from trtopt.records import DevicePeaks, KernelFamily, LayerCost, Peak, ProfiledLayer, RooflineTotal, Shape


def _ops(text: str) -> frozenset[str]:
    return frozenset(text.split())


FREE = _ops(
    "Reshape Flatten Squeeze Unsqueeze Identity Dropout Constant ConstantOfShape Shape Size Range "
    "QuantizeLinear DequantizeLinear"
)
"""Views, and what a builder folds away or fuses into its neighbour: neither operations nor bytes."""
_MOVES = _ops(
    "Transpose Concat Split Slice Gather GatherElements GatherND ScatterElements ScatterND Pad Expand Tile "
    "Cast DepthToSpace SpaceToDepth Resize Upsample Where TopK NonZero Compress OneHot Trilu "
    "CumSum ReverseSequence EyeLike NonMaxSuppression ArgMax ArgMin"
)
_POOLS = frozenset({"AveragePool", "MaxPool", "LpPool"})
_GLOBAL_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool"})
_PER_ELEMENT = {
    "BatchNormalization": 2,  # scale and shift, already folded together
    "Softmax": 5,  # maximum, difference, exponential, sum, quotient
    "LogSoftmax": 5,
    "LayerNormalization": 8,  # mean 1, variance 3, normalise 2, scale and shift 2
    "RMSNormalization": 5,
    "GroupNormalization": 8,
    "InstanceNormalization": 8,
    "LRN": 5,
}


def node_flops(graph: Graph, node: Node) -> int | None:
    """Operations of one node; None where the operator or a shape that it needs is not known."""
    if node.op in FREE or node.op in _MOVES:
        return 0
    shapes = [graph.shapes.get(name) if name else None for name in node.inputs]
    out = graph.shapes.get(node.outputs[0]) if node.outputs else None
    if not shapes or shapes[0] is None or out is None:
        return None
    if node.op in ELEMENTWISE:
        return prod(out)
    if node.op in REDUCTIONS or node.op in _GLOBAL_POOLS:
        return prod(shapes[0])
    if node.op in _POOLS:
        kernel: tuple[int, ...] = tuple(node.attributes.get("kernel_shape", ()))
        return prod(out) * prod(kernel)
    if node.op in _PER_ELEMENT:
        return prod(shapes[0]) * _PER_ELEMENT[node.op]
    if node.op not in _PRODUCTS or node.domain:
        return None
    places, formula = _PRODUCTS[node.op]
    read = [shapes[place] if place < len(shapes) else None for place in places]
    return None if None in read else formula(node, out, *read)


def _conv(node: Node, out: Shape, kernel: Shape) -> int:
    return 2 * prod(out) * prod(kernel[1:])  # [output channels, input channels / groups, *kernel]


def _conv_transpose(node: Node, out: Shape, source: Shape, kernel: Shape) -> int:
    return 2 * prod(source) * prod(kernel[1:])  # [input channels, output channels / groups, *kernel]


def _matmul(node: Node, out: Shape, left: Shape) -> int:
    return 2 * prod(out) * left[-1]


def _gemm(node: Node, out: Shape, left: Shape) -> int | None:
    return 2 * prod(out) * left[0 if node.attributes.get("transA") else 1] if len(left) == 2 else None


def _recurrent(node: Node, out: Shape, x: Shape, w: Shape, r: Shape) -> int:
    """X [T, N, I] · W [D, G·H, I] and the state [N, H] · R [D, G·H, H] at each of T steps."""
    return 2 * x[0] * x[1] * (prod(w) + prod(r))


def _attention(node: Node, out: Shape, q: Shape, k: Shape, v: Shape) -> int | None:
    """Q [N, heads, L, E], K [N, heads, S, E], V [N, heads, S, F]: two products; 4-D inputs only."""
    if len(q) != 4 or len(k) != 4:
        return None
    return 2 * prod(q) * k[2] + 2 * prod(q[:3]) * k[2] * v[3]


_PRODUCTS: dict[str, tuple[tuple[int, ...], Callable[..., int | None]]] = {
    "Conv": ((1,), _conv),
    "ConvInteger": ((1,), _conv),
    "ConvTranspose": ((0, 1), _conv_transpose),
    "Einsum": ((), lambda node, out: None),  # its equation is not read
    "MatMul": ((0,), _matmul),
    "MatMulInteger": ((0,), _matmul),
    "QLinearConv": ((3,), _conv),  # behind x, its scale and its zero point
    "QLinearMatMul": ((0,), _matmul),
    "Gemm": ((0,), _gemm),
    "LSTM": ((0, 1, 2), _recurrent),
    "GRU": ((0, 1, 2), _recurrent),
    "RNN": ((0, 1, 2), _recurrent),
    "Attention": ((0, 1, 2), _attention),
}
"""The inputs whose shapes a product's formula reads, and the formula."""
_FOREIGN_PRODUCT = re.compile("MatMul|Gemm|Conv|Attention|LSTM|GRU|MoE")
"""Such as FusedMatMul, QGemm and MultiHeadAttention, which ONNX Runtime writes in a domain of its own."""


FAMILIES: dict[KernelFamily, Collection[str]] = {
    "product": _PRODUCTS.keys(),
    "softmax": ("Softmax", "LogSoftmax"),
    "normalisation": _PER_ELEMENT.keys() - {"Softmax", "LogSoftmax"},
    "pooling": _POOLS | _GLOBAL_POOLS,
    "reduction": {*REDUCTIONS, "ArgMax", "ArgMin", "TopK"},
    "pointwise": {*ELEMENTWISE} - _MOVES - FREE,
    "copy": _MOVES - {"Cast", "Transpose"},
    "reformat": FREE | {"Cast", "Transpose"},
}
"""Operators by what a kernel for them does, the most work first."""


def family_of(ops: Collection[str]) -> KernelFamily:
    """What a layer of these operators does, by the most work of them; `other` where none is known."""
    return next((family for family, known in FAMILIES.items() if any(op in known for op in ops)), "other")


def macs_of(graph: Graph) -> int | None:
    """Multiply-adds of all convolutions, products and attention; None where a shape or a formula is not."""
    counts = [
        node_flops(graph, node)
        for node in graph.nodes
        if (_FOREIGN_PRODUCT.search(node.op) if node.domain else node.op in _PRODUCTS)
    ]
    return None if None in counts else sum(filter(None, counts)) // 2


def tensor_bytes(graph: Graph, tensor: str) -> int | None:
    """Bytes of a tensor in the type in which it has to be moved; None where its shape or type is unknown."""
    shape, dtype = graph.shapes.get(tensor), graph.stored_dtype(tensor)
    if shape is None or not dtype or dtype == "unknown":
        return None
    return -(-prod(shape) * bits_of(dtype) // 8)


def cost_of(graph: Graph, nodes: Collection[Node]) -> LayerCost | None:
    """What nodes that run as one layer cost at least: what passes between them is never moved.

    None where any of it is unknown: a floor that leaves something out would be none.
    """
    counts = [node_flops(graph, node) for node in nodes]
    sizes = [tensor_bytes(graph, tensor) for tensor in _boundary(graph, nodes)]
    if None in counts or None in sizes:
        return None
    return LayerCost(flops=sum(filter(None, counts)), bytes_moved=sum(filter(None, sizes)))


def _boundary(graph: Graph, nodes: Collection[Node]) -> list[str]:
    """Tensors that enter or leave a set of nodes, each once, named on the far side of views and Q/DQ.

    A Gather reads no more of its table than it writes: the table is left out.
    """
    inside = {node.index for node in nodes}
    if all(node.op in FREE for node in nodes):
        return []
    entering = {
        name: None
        for node in nodes
        if node.op not in (QUANTIZE, DEQUANTIZE, "Shape", "Size", "Range", "ConstantOfShape")
        for position, name in enumerate(node.inputs)
        if name and not (node.op == "Gather" and position == 0 and graph.is_constant(name))
        if _made_outside(graph, name, inside)
    }
    leaving = {
        name: None
        for node in nodes
        for name in node.outputs
        if name and node.op != QUANTIZE
        if name in graph.outputs or any(one.index not in inside for one in graph.consumers.get(name, ()))
    }
    return [*entering, *(name for name in leaving if name not in entering)]


def _made_outside(graph: Graph, tensor: str, inside: Collection[int]) -> bool:
    """DequantizeLinear inside stands for what it reads."""
    node = graph.producer.get(tensor)
    while node is not None and node.index in inside and node.op in (DEQUANTIZE, QUANTIZE):
        node = graph.producer.get(node.inputs[0])
    return node is None or node.index not in inside


# How fast a layer could run at best: max(operations / peak rate, bytes / bandwidth).
#
# Williams, Waterman, Patterson: Roofline: an insightful visual performance model (2009). The rate is that
# of matrix products in the type that the layer ran in; a layer below its bandwidth's floor had its data in
# cache.


_FURTHEST = 5


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


def furthest_above(layers: Sequence[ProfiledLayer]) -> tuple[str, ...]:
    """The layers with the most time above their floor; none where no floor is known."""
    if not any(layer.cost is not None and layer.cost.floor_ms is not None for layer in layers):
        return ()
    ordered = sorted(layers, key=lambda layer: (-above_floor_ms(layer), layer.name))
    return tuple(layer.name for layer in ordered[:_FURTHEST] if above_floor_ms(layer) > 0)


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


# The most that devices do: by their data sheets, and as probes have measured it.
#
# Data sheets give rates of matrix products with structured sparsity, which is not used here, or without; the
# table has the rates without it, which are half as high.


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
