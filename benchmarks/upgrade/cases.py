"""Small models, and each again with a fault that a wrong fusion might make: what `--upgrade` is tried on.

A fault changes the graph, so that an engine of it computes the wrong thing; its folder says that it is of the
right model (`plant`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtopt.files.manifests import MANIFEST, read_manifest
from trtopt.records import to_json

BATCH = 4
Edit = Callable[[np.ndarray], None] | None


class Net:
    """A graph in the making, its weights seeded by their names: the wrong model has the right one's."""

    seed = 0

    def __init__(self, name: str, **inputs: Sequence[int | str]) -> None:
        self.name = name
        self.inputs = [helper.make_tensor_value_info(key, TensorProto.FLOAT, s) for key, s in inputs.items()]
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def ids(self, name: str, *shape: int | str) -> str:
        """Add an input of integers."""
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, shape))
        return name

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        """Add a node; answers with its first output."""
        name = f"{kind.lower()}{len(self.nodes)}"
        names = [name, *(f"{name}_{index}" for index in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name, **attributes))
        return name

    def const(self, values: object, kind: type = np.float32) -> str:
        """Add a constant."""
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def ints(self, *values: int) -> str:
        """Add a constant of integers."""
        return self.const(values, np.int64)

    def weight(self, key: str, *shape: int, edit: Edit = None) -> str:
        """Add a seeded weight, edited by a fault."""
        random = np.random.default_rng([self.seed, *f"{self.name} {key}".encode()])
        values = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)
        if edit is not None:
            edit(values)
        return self.const(values)

    def conv(
        self,
        key: str,
        x: str,
        outputs: int,
        inputs: int,
        size: int = 3,
        edit: Edit = None,
        pads: list[int] | None = None,
    ) -> str:
        """Add a convolution with a bias."""
        w = self.weight(f"{key}.w", outputs, inputs, size, size, edit=edit)
        b = self.weight(f"{key}.b", outputs)
        return self.op("Conv", x, w, b, pads=pads or [size // 2] * 4)

    def linear(self, key: str, x: str, inputs: int, outputs: int, edit: Edit = None) -> str:
        """Add a product and a bias."""
        product = self.op("MatMul", x, self.weight(f"{key}.w", inputs, outputs, edit=edit))
        return self.op("Add", product, self.weight(f"{key}.b", outputs))

    def slice(self, x: str, axis: int, start: int, end: int, step: int = 1) -> str:
        """Add a slice of one axis."""
        return self.op("Slice", x, *(self.ints(value) for value in (start, end, axis, step)))

    def norm(self, key: str, x: str, width: int, epsilon: float = 1e-5) -> str:
        """Add a layer normalisation."""
        gain, shift = (self.weight(f"{key}.{part}", width) for part in "gs")
        return self.op("LayerNormalization", x, gain, shift, epsilon=epsilon, axis=-1)

    def model(self, *outputs: str, kinds: Sequence[int] = (TensorProto.FLOAT,) * 2) -> onnx.ModelProto:
        """The outputs are called by number: faults change the names of nodes."""
        names = {name: f"out{index}" for index, name in enumerate(outputs)}
        for node in self.nodes:
            for part in (node.input, node.output):
                part[:] = [names.get(name, name) for name in part]
        ends = [
            helper.make_tensor_value_info(name, kind, None)
            for name, kind in zip(names.values(), kinds, strict=False)
        ]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, ends, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def residual(fault: str = "") -> onnx.ModelProto:
    """Convolutions with a skip, pooled, and a classifier."""
    net = Net("residual", x=("N", 3, 16, 16))

    def swap_filter(values: np.ndarray) -> None:
        values[5] = values[6]

    stem = net.op(
        "Relu", net.conv("stem", "x", 16, 3, edit=swap_filter if fault == "one wrong channel" else None)
    )
    pads = [1, 1, 0, 1] if fault == "padding lost at one edge" else None
    inner = net.conv("one", stem, 16, 16, pads=pads)
    if pads:
        inner = net.op("Pad", inner, net.ints(0, 0, 0, 0, 0, 0, 1, 0), mode="edge")
    inner = net.op("Relu", inner)
    if fault == "clipped range":
        inner = net.op("Clip", inner, net.const(0.0), net.const(6.0))
    inner = net.conv("two", inner, 16, 16)
    both = net.op("Relu", inner if fault == "skip left out" else net.op("Add", inner, stem))
    if fault == "rounded to FP16":
        both = net.op("Cast", net.op("Cast", both, to=TensorProto.FLOAT16), to=TensorProto.FLOAT)
    pooled = net.op("Flatten", net.op("GlobalAveragePool", both))

    def stale(values: np.ndarray) -> None:
        values[:, 3] *= 1.2

    edit = stale if fault == "stale constant" else None
    return net.model(net.linear("head", pooled, 16, 10, edit=edit), both)


def strided_concat(fault: str = "") -> onnx.ModelProto:
    """Two branches, one of which takes every second column, side by side."""
    net = Net("strided_concat", x=("N", 8, 12, 12))
    left = net.op("Relu", net.conv("left", "x", 8, 8))
    first = net.slice(left, 3, 0, 12, 2)
    wide = net.conv("right", "x", 8, 8)
    second = net.slice(wide, 3, 0, 6) if fault == "strided concat" else net.slice(wide, 3, 1, 12, 2)
    joined = net.op("Concat", first, second, axis=1)
    if fault == "swapped axis":
        joined = net.op("Concat", net.slice(joined, 1, 8, 16), net.slice(joined, 1, 0, 8), axis=1)
    return net.model(net.conv("last", joined, 6, 16, size=1))


def products(fault: str = "") -> onnx.ModelProto:
    """Matrix products with GELU between them."""
    net = Net("products", x=("N", 64))

    def zero_rows(values: np.ndarray) -> None:
        values[-4:] = 0

    x = net.linear("up", "x", 64, 128, edit=zero_rows if fault == "zeroed GEMM rows" else None)
    half = net.op("Mul", x, net.const(0.5))
    erf = net.op("Erf", net.op("Div", x, net.const(2**0.5)))
    if fault == "one bad sample of a batch":
        erf = net.op(
            "Concat", net.slice(erf, 0, 0, 2), net.slice(erf, 0, 0, 1), net.slice(erf, 0, 3, BATCH), axis=0
        )
    y = net.op("Mul", half, net.op("Add", erf, net.const(1.0)))
    y = net.linear("down", y, 128, 48)
    if fault == "wrong last element":
        y = net.op("Concat", net.slice(y, 1, 0, 47), net.slice(y, 1, 46, 47), axis=1)
    if fault == "small values lost":
        y = net.op("Mul", y, net.op("Cast", net.op("Greater", net.op("Abs", y), net.const(1e-2)), to=1))
    return net.model(y)


def attention(fault: str = "") -> onnx.ModelProto:
    """An encoder layer over token ids."""
    net = Net("attention")
    ids = net.ids("ids", "N", 12)
    table = net.weight("table", 50, 32)
    if fault == "last index of a table":
        ids = net.op("Min", ids, net.const(48, np.int64))
    x = net.op("Gather", table, ids)
    heads = []
    for part in "qkv":
        split = net.op("Reshape", net.linear(part, x, 32, 32), net.ints(0, 12, 4, 8))
        heads.append(net.op("Transpose", split, perm=[0, 2, 1, 3]))
    scores = net.op("MatMul", heads[0], net.op("Transpose", heads[1], perm=[0, 1, 3, 2]))
    if fault != "scale left out":
        scores = net.op("Div", scores, net.const(8**0.5))
    shares = net.op("Softmax", scores, axis=2 if fault == "softmax along another axis" else -1)
    if fault == "NaN in attention":
        marked = np.zeros((1, 4, 12, 12))
        marked[0, 2, 7, 3] = np.nan
        shares = net.op("Add", shares, net.const(marked))
    mixed = net.op("Transpose", net.op("MatMul", shares, heads[2]), perm=[0, 2, 1, 3])
    out = net.linear("out", net.op("Reshape", mixed, net.ints(0, 12, 32)), 32, 32)
    return net.model(net.norm("norm", net.op("Add", x, out), 32))


def normalised(fault: str = "") -> onnx.ModelProto:
    """Layer normalisation of hidden states, then a gate."""
    net = Net("normalised", x=("N", 10, 32))
    x = net.norm("norm", "x", 32, epsilon=1e-3 if fault == "another epsilon" else 1e-5)
    gate = "HardSigmoid" if fault == "approximate activation" else "Sigmoid"
    gated = net.op("Mul", x, net.op(gate, net.linear("gate", x, 32, 32)))
    return net.model(net.linear("last", gated, 32, 16))


def reductions(fault: str = "") -> onnx.ModelProto:
    """Sums and means with a wide range among channels, and one number a sample."""
    net = Net("reductions", x=("N", 6, 40))
    scaled = net.op("Mul", "x", net.const(np.logspace(-2, 2, 6).reshape(1, 6, 1)))
    short = net.slice(scaled, 2, 0, 39) if fault == "sum without the last element" else scaled
    total = net.op("ReduceSum", short, net.ints(2), keepdims=0)
    spread = net.op("ReduceMean", net.op("Abs", scaled), axes=[1, 2], keepdims=0)
    return net.model(net.linear("mix", total, 6, 6), spread)


def quantised(fault: str = "") -> onnx.ModelProto:
    """A convolution in INT8: Q/DQ of the input and, channel by channel, of the weight."""
    net = Net("quantised", x=("N", 8, 10, 10))
    scale, zero = net.const(0.03), net.const(0, np.int8)
    x = net.op("DequantizeLinear", net.op("QuantizeLinear", "x", scale, zero), scale, zero)
    scales = np.full(12, 0.004)
    w, zeros = net.weight("w", 12, 8, 3, 3), net.const(np.zeros(12), np.int8)
    steps = net.const(scales)
    q = net.op("QuantizeLinear", w, steps, zeros, axis=0)
    if fault == "one channel's scale":
        scales[4] *= 1.5
        steps = net.const(scales)
    y = net.op("Conv", x, net.op("DequantizeLinear", q, steps, zeros, axis=0), pads=[1] * 4)
    return net.model(net.op("Relu", y))


def detector(fault: str = "") -> onnx.ModelProto:
    """Coordinates in pixels and scores of classes, side by side in one output."""
    net = Net("detector", x=("N", 3, 16, 16))
    body = net.op("Relu", net.conv("body", "x", 16, 3))
    boxes = net.op("Mul", net.op("Sigmoid", net.conv("boxes", body, 4, 16, size=1)), net.const(640.0))
    scores = net.op("Sigmoid", net.conv("scores", body, 20, 16, size=1))
    if fault == "scores lost":
        scores = net.op("Mul", scores, net.const(0.0))
    if fault == "two classes swapped":
        parts = [net.slice(scores, 1, *ends) for ends in ((1, 2), (0, 1), (2, 20))]
        scores = net.op("Concat", *parts, axis=1)
    joined = net.op("Concat", boxes, scores, axis=1)
    return net.model(net.op("Reshape", joined, net.ints(0, 24, 256)))


def labelled(fault: str = "") -> onnx.ModelProto:
    """Scores at every place, and the best class of each."""
    net = Net("labelled", x=("N", 5, 8, 8))
    scores = net.conv("scores", net.op("Tanh", net.conv("one", "x", 12, 5)), 7, 12, size=1)
    best = net.op("ArgMax", scores, axis=1, keepdims=0, select_last_index=0)
    if fault == "a label off by one":
        marked = np.zeros((1, 8, 8))
        marked[0, 7, 7] = 1
        best = net.op("Add", best, net.const(marked, np.int64))
    return net.model(scores, best, kinds=(TensorProto.FLOAT, TensorProto.INT64))


MODELS: dict[str, Callable[[str], onnx.ModelProto]] = {
    one.__name__: one
    for one in (
        residual, strided_concat, products, attention, normalised, reductions, quantised, detector, labelled,
    )
}  # fmt: skip
FAULTS = {
    "residual": (
        "one wrong channel", "padding lost at one edge", "clipped range", "skip left out", "rounded to FP16",
        "stale constant",
    ),
    "strided_concat": ("strided concat", "swapped axis"),
    "products": (
        "zeroed GEMM rows", "one bad sample of a batch", "wrong last element", "small values lost",
    ),
    "attention": ("last index of a table", "softmax along another axis", "NaN in attention"),
    "normalised": ("another epsilon", "approximate activation"),
    "reductions": ("sum without the last element",),
    "quantised": ("one channel's scale",),
    "detector": ("scores lost", "two classes swapped"),
    "labelled": ("a label off by one",),
}  # fmt: skip
"""The planted wrong results by model, 22 in all."""


def planted() -> Iterator[tuple[str, str]]:
    """(model, fault)."""
    return ((name, fault) for name, faults in FAULTS.items() for fault in faults)


def write(name: str, path: Path, fault: str = "", seed: int = 0) -> Path:
    """The model, or the wrong one, as a file; the seed is that of its weights."""
    Net.seed = seed
    model = onnx.shape_inference.infer_shapes(MODELS[name](fault), strict_mode=True)
    onnx.save(model, path)
    return path


def plant(right: Path, wrong: Path, folder: Path) -> Path:
    """A copy of the build folder `right` with the engines of `wrong`: they compute what it does not say."""
    shutil.copytree(right, folder)
    manifest = read_manifest(folder)
    engines = []
    for ours, theirs in zip(manifest.engines, read_manifest(wrong).engines, strict=True):
        shutil.copyfile(wrong / theirs.path, folder / ours.path)
        engines.append(msgspec.structs.replace(ours, sha256=theirs.sha256, size_bytes=theirs.size_bytes))
    (folder / MANIFEST).write_bytes(to_json(msgspec.structs.replace(manifest, engines=tuple(engines))))
    return folder
