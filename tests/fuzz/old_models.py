"""Random networks of opset 7 to 12, of operators that newer opsets write otherwise, each from its number."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SHAPE = (2, 4, 10, 8)
_LAYERS = 7


class OldNet:
    """A chain of layers from `x`; each turns the image [2, C, H, W] at hand into the next."""

    def __init__(self, number: int, *, smooth: bool) -> None:
        self.rng = Random(f"old opsets/{number}")
        self.opset = self.rng.randint(7, 12)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.at, self.shape = "x", list(SHAPE)
        self._numbers = np.random.default_rng(number)
        layers = [_conv, *self.rng.choices(_SMOOTH if smooth else [*_SMOOTH, *_STEPS], k=_LAYERS), _conv]
        for layer in layers:
            layer(self)
        _head(self) if self.rng.random() < 0.5 else None

    def model(self) -> onnx.ModelProto:
        """The network."""
        batch = ["N", *SHAPE[1:]]
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, batch)]
        outputs = [helper.make_tensor_value_info(self.at, TensorProto.FLOAT, ["N", *self.shape[1:]])]
        graph = helper.make_graph(self.nodes, "old", inputs, outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=6)

    def node(
        self, op: str, *more: str, source: str | None = None, outputs: int = 1, **attributes: Any
    ) -> list[str]:
        """One more node on the tensor at hand; every other has a name."""
        made = [f"t{len(self.nodes)}" + "abc"[index] for index in range(outputs)]
        inputs = [self.at if source is None else source, *more]
        name = f"n{len(self.nodes)}" if self.rng.random() < 0.5 else ""
        self.nodes.append(helper.make_node(op, inputs, made, name=name, **attributes))
        self.at = made[0]
        return made

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        """A new initializer."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def normal(self, *shape: int, scale: float = 0.3) -> str:
        """Random weights."""
        return self.constant(self._numbers.standard_normal(shape) * scale)


def _conv(net: OldNet) -> None:
    channels = net.rng.choice([4, 6, 8])
    net.node("Conv", net.normal(channels, net.shape[1], 3, 3), pads=[1] * 4)
    net.shape[1] = channels


def _norm(net: OldNet) -> None:
    count = net.shape[1]
    positive = net.constant(np.abs(net._numbers.standard_normal(count)) + 0.5)
    net.node("BatchNormalization", positive, net.normal(count), net.normal(count), positive)


def _clip(net: OldNet) -> None:
    bounds = net.rng.choice(
        [{"min": 0.0, "max": 6.0}, {"min": -0.5}, {"max": 0.75}, {"min": -1.0, "max": 1.0}]
    )
    if net.opset < 11:
        net.node("Clip", **bounds)
    else:
        names = [net.constant(bounds[name]) if name in bounds else "" for name in ("min", "max")]
        net.node("Clip", *names)


def _activation(net: OldNet) -> None:
    net.node(net.rng.choice(["Relu", "LeakyRelu", "Elu", "Sigmoid", "Softplus"]))


def _pad(net: OldNet) -> None:
    before, after = net.rng.randint(0, 2), net.rng.randint(0, 2)
    pads = [0, 0, before, 1, 0, 0, after, 1]
    mode, value = net.rng.choice([("constant", 0.0), ("constant", 0.5), ("reflect", 0.0), ("edge", 0.0)])
    if net.opset < 11:
        net.node("Pad", pads=pads, mode=mode, value=value)
    else:
        net.node("Pad", net.constant(pads, np.int64), net.constant(value), mode=mode)
    net.shape[2:] = [net.shape[2] + before + after, net.shape[3] + 2]


def _resize(net: OldNet) -> None:
    tall, wide = net.rng.choice([(2.0, 2.0), (1.5, 2.0), (0.5, 0.5), (1.0, 1.0), (0.7, 0.6)])
    mode = net.rng.choice(["nearest", "linear"])
    if net.opset < 10:
        tall, wide = max(tall, 1.0), max(wide, 1.0)
    size = [net.shape[2] * np.float32(tall), net.shape[3] * np.float32(wide)]
    if max(size) > 32 or min(size) < 4:
        return
    scales = [1.0, 1.0, tall, wide]
    if net.opset < 9:
        net.node("Upsample", mode=mode, scales=scales)
    elif net.opset < 11:
        net.node("Upsample" if net.opset == 9 else "Resize", net.constant(scales), mode=mode)
    else:
        how = net.rng.choice(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
        net.node(
            "Resize", net.constant([]), net.constant(scales), mode=mode, coordinate_transformation_mode=how
        )
    net.shape[2:] = [int(axis) for axis in size]


def _pool(net: OldNet) -> None:
    if min(net.shape[2:]) < 6:
        return
    more = {"ceil_mode": net.rng.randint(0, 1)} if net.opset >= 10 else {}
    kind = net.rng.choice(["MaxPool", "AveragePool"])
    if kind == "AveragePool":
        more["count_include_pad"] = net.rng.randint(0, 1)
    net.node(kind, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0], **more)
    up = more.get("ceil_mode", 0)
    net.shape[2:] = [(axis + 1 - 3 + up) // 2 + 1 for axis in net.shape[2:]]


def _soft(net: OldNet) -> None:
    kind = net.rng.choice(["Softmax", "LogSoftmax"])
    axis = net.rng.choice([None, 1, 2, 3, *([-1, -2] if net.opset >= 11 else [])])
    net.node(kind, **({} if axis is None else {"axis": axis}))


def _gate(net: OldNet) -> None:
    trunk = net.at
    net.node("ReduceMean", axes=[2, 3], keepdims=1)
    net.node("Sigmoid")
    net.node("Mul", net.at, source=trunk)


def _sums(net: OldNet) -> None:
    kind = net.rng.choice(["ReduceSum", "ReduceMax", "ReduceL2", "ReduceMean"])
    trunk, axis = net.at, net.rng.randint(1, 3)
    net.node(kind, axes=[axis], keepdims=0)
    net.node("Unsqueeze", axes=[axis])
    net.node("Sub", net.at, source=trunk)


def _squeezed(net: OldNet) -> None:
    axis = net.rng.randint(1, 3)
    net.node("Unsqueeze", axes=[axis])
    net.node("Squeeze", axes=[axis])


def _slice(net: OldNet) -> None:
    if net.shape[2] < 6:
        return
    if net.opset < 10:
        net.node("Slice", starts=[1, -3], ends=[2147483647, 2147483647], axes=[2, 1])
    else:
        bounds = ([1, -3], [2147483647, 2147483647], [2, 1])
        net.node("Slice", *(net.constant(values, np.int64) for values in bounds))
    net.shape[1:3] = [min(3, net.shape[1]), net.shape[2] - 1]


def _split(net: OldNet) -> None:
    if net.shape[1] < 2:
        return
    first = net.rng.randint(1, net.shape[1] - 1)
    parts = net.node("Split", outputs=2, axis=1, split=[first, net.shape[1] - first])
    net.node("Concat", parts[0], source=parts[1], axis=1)


def _halved(net: OldNet) -> None:
    if net.shape[1] % 2 == 0:
        left, right = net.node("Split", outputs=2, axis=1)
        net.node("Add", right, source=left)
        net.shape[1] //= 2


def _sorted(net: OldNet) -> None:
    if net.opset < 10:
        net.node("TopK", outputs=2, axis=3, k=net.shape[3])
    else:
        net.node("TopK", net.constant([net.shape[3]], np.int64), outputs=2, axis=3)


def _turned(net: OldNet) -> None:
    net.node("Transpose", perm=[0, 1, 3, 2])
    net.shape[2:] = net.shape[:1:-1]


def _shifted(net: OldNet) -> None:
    net.node(net.rng.choice(["Add", "Mul"]), net.normal(1, net.shape[1], 1, 1, scale=1.0))


def _drop(net: OldNet) -> None:
    net.node("Dropout", **({"ratio": 0.3} if net.opset < 12 else {}))


def _branch(net: OldNet) -> None:
    """An If whose arms clip and pad; its condition holds for some inputs."""
    source, number = net.at, len(net.nodes)
    arms = {}
    for arm, (low, high) in (("then_branch", (-0.5, 0.5)), ("else_branch", (0.0, 1.0))):
        name = f"{arm}{number}"
        soft = helper.make_node("Softmax", [f"{name}/t"], [name], axis=2)
        inner = [helper.make_node("Transpose", [source], [f"{name}/t"], perm=[0, 1, 3, 2]), soft]
        if net.opset < 11:
            inner.insert(0, helper.make_node("Clip", [source], [f"{name}/c"], min=low, max=high))
            inner[1].input[0] = f"{name}/c"
        told = helper.make_tensor_value_info(
            name, TensorProto.FLOAT, ["N", *net.shape[1:2], *net.shape[:1:-1]]
        )
        arms[arm] = helper.make_graph(inner, name, [], [told])
    net.node("ReduceMean", source=source, keepdims=0)
    net.node("Greater" if net.opset >= 9 else "Less", net.constant(0.0))
    net.node("If", **arms)
    net.shape[2:] = net.shape[:1:-1]


def _hard(net: OldNet) -> None:
    net.node("Hardmax", axis=net.rng.randint(1, 3))


def _head(net: OldNet) -> None:
    net.node("GlobalAveragePool")
    net.node("Flatten", axis=1)
    net.node("Gemm", net.normal(net.shape[1], 5), net.normal(5))
    net.node("Softmax", axis=1)
    net.shape = [2, 5]


_SMOOTH: list[Callable[[OldNet], None]] = [
    _conv, _norm, _clip, _activation, _pad, _resize, _pool, _soft, _gate, _sums, _squeezed, _slice, _split,
    _halved, _sorted, _turned, _shifted, _drop,
]  # fmt: skip
_STEPS: list[Callable[[OldNet], None]] = [_hard, _branch]
"""Layers that a small error in front may turn into a large one."""
