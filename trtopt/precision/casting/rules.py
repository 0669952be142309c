"""What a node can be in 16 bits: by the user's patterns, operator schemas, weights, and GELUs worth casts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.onnxio.graph_walk import OWN_DOMAINS, DisjointNames
from trtopt.onnxio.shape_inference import FLOAT, schema_of, with_parameters
from trtopt.onnxio.weights import dtype_of, stretches
from trtopt.precision.placement.draft import NORMS


@dataclass(frozen=True)
class Places:
    """By position: whether that input or output of a node becomes 16-bit when the node does."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]

    @property
    def any(self) -> bool:
        """Whether there is anything to change."""
        return any(self.inputs) or any(self.outputs)


@cache
def takes(operator: str, opset: int, low: int) -> bool | None:
    """Whether some type of the operator may be `low`; None for an operator that ONNX does not know."""
    schema = schema_of(operator, opset)
    if schema is None:
        return None
    return any(f"tensor({dtype_of(low)})" in item.allowed_type_strs for item in schema.type_constraints)


def places_of(node: onnx.NodeProto, opset: int, low: int, types: Mapping[str, int]) -> Places:
    """Where `node` can be of type `low` instead of FP32; `types` are those of the tensors.

    Where one tensor's type is not known, those that must be of the same type stay what they are.
    """
    schema = schema_of(node.op_type, opset) if node.domain in OWN_DOMAINS else None
    if schema is None:
        return Places((False,) * len(node.input), (False,) * len(node.output))
    unknown = {parameter for name, parameter in with_parameters(node, schema) if name not in types}
    open_types = {
        item.type_param_str
        for item in schema.type_constraints
        if f"tensor({dtype_of(low)})" in item.allowed_type_strs and item.type_param_str not in unknown
    }

    def of(names: Sequence[str], parameters: Sequence[Any]) -> tuple[bool, ...]:
        return tuple(
            types.get(name) == FLOAT and parameters[min(index, len(parameters) - 1)].type_str in open_types
            for index, name in enumerate(names)
        )

    return Places(of(node.input, schema.inputs), of(node.output, schema.outputs))


def largest(low: int) -> float:
    """The largest finite value of a 16-bit type."""
    return float(ml_dtypes.finfo(dtype_of(low)).max)


def exact_integers(low: int) -> float:
    """The largest n such that all whole numbers up to n have a form in a 16-bit type."""
    return float(2 ** (ml_dtypes.finfo(dtype_of(low)).nmant + 1))


def _rounded_to_zero(low: int) -> float:
    """The largest value that rounds to 0 in a 16-bit type: half its smallest one, where ties go to even."""
    return float(ml_dtypes.finfo(dtype_of(low)).smallest_subnormal) / 2


@dataclass(frozen=True)
class Fit:
    """How a weight fits: its largest finite |x|, how many of its non-zero values become 0, of how many."""

    largest: float
    vanishing: int
    nonzero: int

    @property
    def vanishes(self) -> bool:
        """Whether nothing but zeros would be left of a weight that is not all zero."""
        return 0 < self.nonzero == self.vanishing


def fit_of(array: NDArray[Any], low: int) -> Fit:
    """How the FP32 values of `array` fit into the type `low`."""
    peak = 0.0
    vanishing = nonzero = 0
    tiny = _rounded_to_zero(low)
    for part in stretches(array):
        sizes = np.abs(part)
        if not np.isfinite(sizes.max()):
            sizes = sizes[np.isfinite(sizes)]
        peak = max(peak, float(sizes.max(initial=0.0)))
        filled = int(np.count_nonzero(sizes))
        nonzero += filled
        vanishing += filled - int(np.count_nonzero(sizes > tiny))
    return Fit(peak, vanishing, nonzero)


def rounding_error(array: NDArray[Any], low: int) -> float:
    """The largest relative error that rounding to `low` causes in a value; 1 for one that vanishes."""
    sizes = np.abs(np.asarray(array, np.float64).reshape(-1))
    sizes = sizes[sizes > 0]
    with np.errstate(over="ignore"):
        rounded = sizes.astype(dtype_of(low)).astype(np.float64)
    return float(np.abs(rounded / sizes - 1).max(initial=0.0))


# GELUs between two quantised products: pointwise nodes that are worth casts though nothing heavy is there.
#
# A TensorRT whose scales are FP32 runs them in FP32, as a kernel of their own. In FP16 they become part of
# the product in front of them: BERT-base in INT8 took 4.8 % less time at batch 8 (8.6, benchmarks/kernels).


_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_POINTWISE = {"Add", "Sub", "Mul", "Div", "Erf"}
_PRODUCTS = {"MatMul", "Gemm"}


def gelus_between_products(
    nodes: Iterable[onnx.NodeProto], candidates: Collection[str], constants: Collection[str]
) -> set[str]:
    """The names of the nodes of all such GELUs, biases and factors included, if `candidates` has all of each.

    Such a group reads quantised products and `constants`, and only Q reads what it makes.
    """
    nodes = list(nodes)
    makers = {name: node for node in nodes for name in node.output if name}
    own = {node.name: node for node in nodes if node.op_type in _POINTWISE and node.name in candidates}
    inside, groups = _together(own)
    others = {
        groups.root(node.name)
        for node in own.values()
        for name in node.input
        if name not in constants and name not in inside and not _is_quantized_product(name, makers)
    }
    for reader in nodes:
        if reader.name not in own and reader.op_type != _QUANTIZE:
            others |= {groups.root(inside[name]) for name in reader.input if name in inside}
    curved = {groups.root(node.name) for node in own.values() if node.op_type == "Erf"}
    return {name for name in own if groups.root(name) in curved - others}


def rest_between_quantized(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """The names of normalisations and GELUs, and of the sums and products that hang together with them."""
    own = {node.name: node for node in nodes if node.op_type in (*_POINTWISE, *NORMS)}
    _, groups = _together(own)
    meant = {groups.root(node.name) for node in own.values() if node.op_type in ("Erf", *NORMS)}
    return {name for name in own if groups.root(name) in meant}


def _together(own: Mapping[str, onnx.NodeProto]) -> tuple[dict[str, str], DisjointNames]:
    """Which of these nodes makes a tensor, by name, and the sets of them that read one another."""
    inside = {name: node.name for node in own.values() for name in node.output if name}
    groups = DisjointNames(own)
    for node in own.values():
        groups.join(node.name, *(inside[name] for name in node.input if name in inside))
    return inside, groups


def _is_quantized_product(tensor: str, makers: dict[str, onnx.NodeProto]) -> bool:
    """Whether a product of two dequantised tensors makes it."""
    product = makers.get(tensor)
    if product is None or product.op_type not in _PRODUCTS:
        return False
    return all(name in makers and makers[name].op_type == _DEQUANTIZE for name in product.input[:2])
