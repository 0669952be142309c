"""Which inputs and outputs of a node can be of a 16-bit type, by ONNX's own operator schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
from onnx import TensorProto

from trtopt.onnxio.graph_walk import OWN_DOMAINS
from trtopt.onnxio.shape_inference import FLOAT, schema_of, with_parameters

_SCHEMA_NAMES: dict[int, str] = {
    TensorProto.FLOAT16: "tensor(float16)",
    TensorProto.BFLOAT16: "tensor(bfloat16)",
}


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
    return any(_SCHEMA_NAMES[low] in item.allowed_type_strs for item in schema.type_constraints)


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
        if _SCHEMA_NAMES[low] in item.allowed_type_strs and item.type_param_str not in unknown
    }

    def of(names: Sequence[str], parameters: Sequence[Any]) -> tuple[bool, ...]:
        return tuple(
            types.get(name) == FLOAT and parameters[min(index, len(parameters) - 1)].type_str in open_types
            for index, name in enumerate(names)
        )

    return Places(of(node.input, schema.inputs), of(node.output, schema.outputs))
