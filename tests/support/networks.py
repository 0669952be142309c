"""Small networks written node by node, for placement and emission."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtopt.onnxio.model_file import ModelFile
from trtopt.precision.placement.draft import PlacementOptions, Plan, Precision, View
from trtopt.precision.placement.place import place


class Net:
    """A graph in the making: each method adds a node named like its result and answers with that name."""

    def __init__(self, opset: int = 17, **inputs: Sequence[int | str]) -> None:
        self._random = np.random.default_rng(3)
        self._inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._opset = opset

    def node(self, op: str, name: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        names = [name, *(f"{name}_{i}" for i in range(1, outputs))]
        self._nodes.append(helper.make_node(op, list(inputs), names, name, **attributes))  # type: ignore[arg-type]
        return name

    def constant(self, name: str, *shape: int, value: np.ndarray | None = None) -> str:
        array = self._random.standard_normal(shape).astype(np.float32) / 4 if value is None else value
        self._weights.append(numpy_helper.from_array(array, name))
        return name

    def conv(self, name: str, x: str, inputs: int, outputs: int, kernel: int = 3, **attributes: int) -> str:
        group = attributes.get("group", 1)
        w = self.constant(f"{name}.w", outputs, inputs // group, kernel, kernel)
        pad = [kernel // 2] * 4
        return self.node("Conv", name, x, w, self.constant(f"{name}.b", outputs), pads=pad, **attributes)

    def linear(self, name: str, x: str, k: int, n: int) -> str:
        return self.node("MatMul", name, x, self.constant(f"{name}.w", k, n))

    def model(self, *outputs: str) -> onnx.ModelProto:
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self._nodes, "net", self._inputs, ends, self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)

    def plan(self, *outputs: str, precision: Precision = "int8", **options: Any) -> Plan:
        return place(View(self.model(*outputs)), PlacementOptions(precision, **options))


def edges(plan: Plan) -> set[tuple[str, str]]:
    """(tensor, reader) of every quantised activation edge."""
    return {(edge.tensor, edge.node) for edge in plan.edges}


def fate(plan: Plan, node: str) -> tuple[bool, str]:
    """Whether a node is quantised, and the reason."""
    item = next(item for item in plan.decisions if item.node == node)
    return item.quantised, item.reason


def quantised(plan: Plan) -> set[str]:
    return {item.node for item in plan.quantized}


def as_file(model: onnx.ModelProto) -> ModelFile:
    """The model with all weights in memory."""
    return ModelFile(model, Path(), external=False)


def residual_block(net: Net, name: str, x: str, width: int = 32) -> str:
    """Two convolutions, the skip, a Relu."""
    a = net.node("Relu", f"{name}.r1", net.conv(f"{name}.c1", x, width, width))
    b = net.conv(f"{name}.c2", a, width, width)
    return net.node("Relu", f"{name}.out", net.node("Add", f"{name}.add", b, x))


def silu(net: Net, name: str, x: str) -> str:
    """x · Sigmoid(x)."""
    return net.node("Mul", name, x, net.node("Sigmoid", f"{name}.sigmoid", x))
