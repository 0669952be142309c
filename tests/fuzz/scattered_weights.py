"""Random networks, and the same with their weights scattered: over files, at odd offsets, some left inline.

Weights have sizes around those at which trtopt leaves them in their file and puts new ones into files; some
are empty, scalars or integers, share bytes, or belong to Constants and branches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtopt.onnxio.external_data import tensors_of
from trtopt.onnxio.model_file import SPOOLED_BYTES
from trtopt.onnxio.shape_inference import LARGE_BYTES

SHAPE = (4, 32)
FILES = ("a.bin", "b", "sub/c.data")


class ScatteredNet:
    """Network `number`: from `x` of SHAPE, whose first axis may be any, to `y`."""

    def __init__(self, number: int) -> None:
        self._rng = np.random.default_rng((number, 77))
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[TensorProto] = []
        self._width, self._last = SHAPE[1], "x"

    def model(self) -> onnx.ModelProto:
        """The network with its weights in the message."""
        steps = [self._product, self._gemm, self._scaled, self._norm, self._joined, self._split]
        steps += [self._picked, self._clipped, self._halves, self._int8, self._branch, self._constant]
        self._product()
        for at in self._rng.permutation(len(steps))[:7]:
            steps[at]()
        self._product()
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self._nodes,
            "scattered",
            [value("x", TensorProto.FLOAT, ["N", SHAPE[1]])],
            [value(self._last, TensorProto.FLOAT, ["M", self._width])],
            self._weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────

    def _node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def _weight(self, values: Any) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def _normal(self, *shape: int) -> Any:
        return (self._rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    def _next_width(self) -> int:
        """One with which a matrix is about as large as a bound, or some other."""
        row = 4 * self._width
        near = [LARGE_BYTES // row, SPOOLED_BYTES // row, int(self._rng.integers(3, 80))]
        return int(np.clip(near[self._rng.integers(3)] + self._rng.integers(-1, 2), 3, 2000))

    def _product(self) -> None:
        width = self._next_width()
        self._last = self._node("MatMul", self._last, self._weight(self._normal(self._width, width)))
        self._width = width

    def _gemm(self) -> None:
        width = self._next_width()
        weight, bias = self._normal(self._width, width).T.copy(), self._normal(1, width)[0]
        inputs = (self._weight(weight), self._weight(bias))
        self._last = self._node("Gemm", self._last, *inputs, transB=1)
        self._width = width

    def _scaled(self) -> None:
        factor = self._weight(1 + self._normal(1, self._width)[0] / 4)
        self._last = self._node("Mul", self._last, factor)
        self._last = self._node("Add", self._last, factor)

    def _norm(self) -> None:
        scale, bias = np.ones(self._width, np.float32), self._normal(self._width)
        self._last = self._node("LayerNormalization", self._last, self._weight(scale), self._weight(bias))

    def _joined(self) -> None:
        self._last = self._node(
            "Concat", self._last, self._weight(np.empty((0, self._width), np.float32)), axis=0
        )

    def _split(self) -> None:
        apart = self._node("Reshape", self._last, self._weight(np.array([-1, 1, self._width])))
        whole = self._node("ReduceSum", apart, self._weight(np.empty(0, np.int64)), noop_with_empty_axes=1)
        self._last = self._node("Reshape", whole, self._weight(np.array([-1, self._width])))

    def _picked(self) -> None:
        width = self._next_width()
        places = self._rng.integers(0, self._width, width)
        self._last = self._node("Gather", self._last, self._weight(places), axis=1)
        self._width = width

    def _clipped(self) -> None:
        ends = self._weight(np.float32(-3)), self._weight(np.float32(3))
        self._last = self._node("Clip", self._last, *ends)

    def _halves(self) -> None:
        weight = self._weight(self._normal(self._width, 40).astype(np.float16))
        wide = self._node("Cast", weight, to=TensorProto.FLOAT)
        self._last = self._node("MatMul", self._last, wide)
        self._width = 40

    def _int8(self) -> None:
        weight = self._weight(self._rng.integers(-127, 128, (self._width, 40), np.int8))
        scales = self._weight(self._rng.uniform(0.001, 0.002, 40).astype(np.float32))
        zeros = self._weight(np.zeros(40, np.int8))
        self._last = self._node(
            "MatMul", self._last, self._node("DequantizeLinear", weight, scales, zeros, axis=1)
        )
        self._width = 40

    def _branch(self) -> None:
        inner = "of_branch"
        offset = numpy_helper.from_array(self._normal(1, self._width)[0], inner)
        result = helper.make_tensor_value_info("taken", TensorProto.FLOAT, None)
        add = helper.make_node("Add", [self._last, inner], ["taken"], "taken")
        graph = helper.make_graph([add], "branch", [], [result], [offset])
        total = self._node("ReduceMax", "x", keepdims=0)
        self._last = self._node(
            "If",
            self._node("Less", total, self._weight(np.float32(100))),
            then_branch=graph,
            else_branch=graph,
        )

    def _constant(self) -> None:
        value = numpy_helper.from_array(self._normal(1, self._width)[0], "of_constant")
        self._last = self._node("Sub", self._last, self._node("Constant", value=value))


def scatter(model: onnx.ModelProto, path: Path, number: int) -> None:
    """Write the model to `path`, each tensor to one of FILES, at any offset, or left in the message."""
    rng = np.random.default_rng((number, 78))
    scattered = onnx.ModelProto()
    scattered.CopyFrom(model)
    (path.parent / "sub").mkdir(exist_ok=True)
    contents = {name: bytearray() for name in FILES}
    for tensor in tensors_of(scattered):
        choice = int(rng.integers(5))
        if choice == 3:  # as values of its type
            values = numpy_helper.to_array(tensor)
            tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, values.ravel()))
        if choice >= 3:
            continue
        location = FILES[choice]
        data, values = contents[location], tensor.raw_data
        data += rng.bytes(int(rng.integers(0, 9)))
        shares = values in bytes(data) and rng.integers(2)
        offset = bytes(data).index(values) if shares else len(data)
        if not shares:
            data += values
        entries = {"location": location, "offset": str(offset), "length": str(len(values))}
        if rng.integers(3) == 0:
            del entries["length"]
        if not offset and rng.integers(2):
            del entries["offset"]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
    for name, data in contents.items():
        (path.parent / name).write_bytes(data)
    path.write_bytes(scattered.SerializeToString())
