"""What ONNX Runtime says when it does not load a model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtopt.onnxio.graph_walk import graphs_of, opset_of

if TYPE_CHECKING:
    import onnx

_UNKNOWN = re.compile(r"(\w+)\(-?\d+\) is not a registered function/op|No Op registered for (\w+)")
_UNIMPLEMENTED = re.compile(r"Could not find an implementation for (\w+)\(\d+\)")
_OLDEST_OPSET = 7
"""ONNX Runtime has every standard operator of newer ones, though not for every type."""


@dataclass(frozen=True)
class MissingOperator:
    """What is missing, and what gives the model an operator that ONNX Runtime has."""

    problem: str
    remedy: str


def missing_operator(told: str, model: onnx.ModelProto) -> MissingOperator | None:
    """The operator that ONNX Runtime lacks, with its first node, if that is what its message says."""
    old, unknown = _UNIMPLEMENTED.search(told), _UNKNOWN.search(told)
    if old and opset_of(model) < _OLDEST_OPSET:
        operator, version = old[1], f" of opset {opset_of(model)}"
        remedy = "export the model again with opset 13 or newer"
    elif unknown:
        operator, version = unknown[1] or unknown[2], ""
        remedy = "build with a TensorRT that has a plugin for it, or replace the operator"
    else:
        return None
    nodes = (node for graph in graphs_of(model.graph) for node in graph.node)
    name = next((node.name for node in nodes if node.op_type == operator), "")
    return MissingOperator(f"ONNX Runtime has no operator {operator!r}{version} (node {name!r})", remedy)
