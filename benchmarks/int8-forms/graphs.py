"""Networks with squeeze-and-excitation in torchvision's export form, with seeded weights.

    python graphs.py FOLDER [NAME …]

writes FOLDER/NAME.onnx and the samples FOLDER/NAME.npz; NAME: regnety, efficientnet, mobilenet. Every
convolution stands for one with its BatchNorm folded: its weights are scaled so that on seeded images each
channel has a mean and a deviation like a trained one's, and residual branches are small. So no signal
vanishes or explodes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

SAMPLES = 32
_FITTED_AT = 96
"""Side of the images that weights are scaled on."""
_OPSET = 17
_BRANCH = 0.3
"""The deviation that a residual branch adds."""


class Net:
    """A graph in the making, run node by node as it grows, so that weights fit what they read."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        images = self._random.standard_normal((4, 3, _FITTED_AT, _FITTED_AT), dtype=np.float32)
        self._values: dict[str, NDArray[np.float32]] = {"x": images}

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        """Its only output."""
        name = f"{op}_{len(self.nodes)}"
        node = helper.make_node(op, list(inputs), [f"{name}_output_0"], name, **attributes)
        self.nodes.append(node)
        self._values[node.output[0]] = self._run(node)
        return str(node.output[0])

    def _run(self, node: onnx.NodeProto) -> NDArray[np.float32]:
        feed = {name: self._values[name] for name in node.input}
        inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, v.shape) for n, v in feed.items()]
        output = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
        graph = helper.make_graph([node], "one", inputs, [output])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
        (value,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
        return np.asarray(value)

    def constant(self, values: NDArray[np.float32]) -> str:
        """A weight."""
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        self._values[name] = values
        return name

    def conv(
        self, x: str, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, size: float = 1.0
    ) -> str:
        """A convolution whose channels have means around 0 and deviations around `size`."""
        inputs = self._values[x].shape[1] // groups
        weight = self._random.standard_normal((outputs, inputs, kernel, kernel), dtype=np.float32)
        sizes = {
            "kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4, "group": groups,
            "dilations": [1, 1],
        }  # fmt: skip
        raw = helper.make_node("Conv", [x, "raw"], ["y"], **sizes)
        self._values["raw"] = weight
        channels = self._run(raw).transpose(1, 0, 2, 3).reshape(outputs, -1)
        spread = np.maximum(channels.std(axis=1), 1e-3)
        gain = size * self._random.uniform(0.5, 1.5, outputs) / spread
        bias = size * self._random.normal(0.0, 0.2, outputs) - channels.mean(axis=1) * gain
        folded = (weight * gain[:, None, None, None]).astype(np.float32)
        return self.node("Conv", x, self.constant(folded), self.constant(bias.astype(np.float32)), **sizes)

    def silu(self, x: str) -> str:
        """x·Sigmoid(x)."""
        return self.node("Mul", x, self.node("Sigmoid", x))

    def activated(self, x: str, kind: str) -> str:
        """By one of the operators, or SiLU."""
        return self.silu(x) if kind == "silu" else self.node(kind, x)

    def excited(self, x: str, squeezed: int, kind: str, gate: str = "Sigmoid") -> str:
        """Squeeze-and-excitation: x times what two convolutions make of its means."""
        width = self._values[x].shape[1]
        hidden = self.activated(self.conv(self.node("GlobalAveragePool", x), squeezed), kind)
        bounds = {"alpha": 1 / 6} if gate == "HardSigmoid" else {}
        return self.node("Mul", self.node(gate, self.conv(hidden, width), **bounds), x)

    def channels(self, x: str) -> int:
        """How many the tensor has."""
        return int(self._values[x].shape[1])

    def classifier(self, x: str, classes: int = 1000) -> str:
        """Means of the maps, and a Gemm."""
        flat = self.node("Flatten", self.node("GlobalAveragePool", x), axis=1)
        width = self._values[flat].shape[1]
        weight = self._random.standard_normal((classes, width), dtype=np.float32) / np.float32(np.sqrt(width))
        bias = self._random.normal(0.0, 0.02, classes).astype(np.float32)
        return self.node("Gemm", flat, self.constant(weight), self.constant(bias), transB=1)

    def model(self, y: str) -> onnx.ModelProto:
        """The whole, of any batch, for images of 224 by 224."""
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 224, 224])
        out = helper.make_tensor_value_info(y, TensorProto.FLOAT, ["batch", 1000])
        graph = helper.make_graph(self.nodes, "net", [x], [out], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model


def regnety() -> onnx.ModelProto:
    """RegNetY-040 (arXiv:2003.13678): 115 convolutions, 44 of them in gates."""
    net = Net()
    x = net.node("Relu", net.conv("x", 32, 3, 2))
    for width, depth in ((128, 2), (192, 6), (512, 12), (1088, 2)):
        for index in range(depth):
            stride, entry = 2 if index == 0 else 1, x
            squeezed = net.channels(x) // 4
            x = net.node("Relu", net.conv(x, width))
            x = net.node("Relu", net.conv(x, width, 3, stride, width // 64))
            x = net.conv(net.excited(x, squeezed, "Relu"), width, size=_BRANCH)
            skip = net.conv(entry, width, 1, stride) if index == 0 else entry
            x = net.node("Relu", net.node("Add", x, skip))
    return net.model(net.classifier(x))


def efficientnet() -> onnx.ModelProto:
    """EfficientNet-B0 (arXiv:1905.11946)."""
    net = Net()
    x = net.silu(net.conv("x", 32, 3, 2))
    stages = (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
    )  # fmt: skip
    for expansion, width, depth, stride, kernel in stages:
        for index in range(depth):
            x = _inverted(net, x, expansion * net.channels(x), width, kernel, stride if index == 0 else 1)
    return net.model(net.classifier(net.silu(net.conv(x, 1280))))


def _inverted(net: Net, entry: str, hidden: int, width: int, kernel: int, stride: int) -> str:
    before = net.channels(entry)
    x = entry if hidden == before else net.silu(net.conv(entry, hidden))
    x = net.silu(net.conv(x, hidden, kernel, stride, hidden))
    x = net.conv(net.excited(x, max(1, before // 4), "silu"), width, size=_BRANCH)
    return net.node("Add", x, entry) if stride == 1 and width == before else x


def mobilenet() -> onnx.ModelProto:
    """MobileNetV3-Large (arXiv:1905.02244)."""
    net, hard = Net(), "HardSwish"
    x = net.node(hard, net.conv("x", 16, 3, 2))
    rows = (
        (3, 16, 16, 0, "Relu", 1), (3, 64, 24, 0, "Relu", 2),
        (3, 72, 24, 0, "Relu", 1),
        (5, 72, 40, 24, "Relu", 2), (5, 120, 40, 32, "Relu", 1), (5, 120, 40, 32, "Relu", 1),
        (3, 240, 80, 0, hard, 2), (3, 200, 80, 0, hard, 1), *((3, 184, 80, 0, hard, 1),) * 2,
        (3, 480, 112, 120, hard, 1), (3, 672, 112, 168, hard, 1), (5, 672, 160, 168, hard, 2),
        (5, 960, 160, 240, hard, 1), (5, 960, 160, 240, hard, 1),
    )  # fmt: skip
    for kernel, hidden, width, squeezed, kind, stride in rows:
        entry, before = x, net.channels(x)
        x = x if hidden == before else net.node(kind, net.conv(x, hidden))
        x = net.node(kind, net.conv(x, hidden, kernel, stride, hidden))
        x = net.excited(x, squeezed, "Relu", "HardSigmoid") if squeezed else x
        x = net.conv(x, width, size=_BRANCH)
        x = net.node("Add", x, entry) if stride == 1 and width == before else x
    return net.model(net.classifier(net.node(hard, net.conv(x, 960))))


NETWORKS = {"regnety": regnety, "efficientnet": efficientnet, "mobilenet": mobilenet}


def main() -> None:
    """Write the networks that are named, or all."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(1).standard_normal((SAMPLES, 3, 224, 224), dtype=np.float32)
    for name in sys.argv[2:] or NETWORKS:
        onnx.save(NETWORKS[name](), folder / f"{name}.onnx")
        np.savez(folder / f"{name}.npz", x=images)
        print(folder / f"{name}.onnx")


if __name__ == "__main__":
    main()
