"""Random graphs that compute shapes, and what ONNX Runtime makes of them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtopt.device.ort.reference import Unoptimised
from trtopt.errors import ModelError

Arrays = dict[str, np.ndarray[Any, Any]]
FEEDS: tuple[Arrays, ...] = tuple(
    {"x": np.zeros(x, np.float32), "z": np.zeros(z, np.float32)}
    for x, z in (((2, 3, 5), (7, 2, 4)), ((3, 3, 4), (2, 3, 4)))
)
_OPS = (
    "Shape",
    "Gather",
    "Slice",
    "Concat",
    "Squeeze",
    "Unsqueeze",
    "Cast",
    "Math",
    "Size",
    "Reshape",
    "Reduce",
)
_NARROW = (TensorProto.INT32, TensorProto.FLOAT, TensorProto.BOOL, TensorProto.UINT8, TensorProto.FLOAT16)
_MOST_VALUES = 5000


@dataclass
class ShapeGraph:
    """A graph under construction: x is [N, 3, L], z is [M, N, 4]; `whole` holds INT64 tensors' names."""

    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    real: list[str] = field(default_factory=lambda: ["x", "z"])

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._opset = self._draw.choice([13, 13, 14, 15, 17, 17, 18, 21])
        self._axis = self._draw.choice(["N", "N", "?", "unk__1", ""])
        self._has_constant_nodes = self._draw.random() < 0.3
        for _ in range(self._draw.randint(4, 12)):
            if self._is_kept(self._grow, self.whole) and self._draw.random() < 0.6:
                self._is_kept(self._use, self.real)

    def model(self, outputs: Sequence[str], ranks: dict[str, int] | None = None) -> onnx.ModelProto:
        """The graph as a model; without `ranks` nothing is declared of the outputs' shapes."""
        told = [
            helper.make_tensor_value_info(
                name,
                TensorProto.FLOAT if name in self.real else TensorProto.INT64,
                None if ranks is None else [None] * ranks[name],
            )
            for name in outputs
        ]
        given = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, self._named("N", 3, "L")),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, self._named("M", "N", 4)),
        ]
        held, nodes = [numpy_helper.from_array(np.array(True), "yes")], []
        if self._has_constant_nodes:
            nodes = [_constant_node(item) for item in self.weights]
        else:
            held += self.weights
        graph = helper.make_graph([*nodes, *self.nodes], "g", given, told, held)
        opsets = [helper.make_opsetid("", self._opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def _named(self, *axes: str | int) -> list[str | int]:
        """The axes, all open ones under one name that says nothing if the graph is so."""
        return [axis if isinstance(axis, int) or self._axis == "N" else self._axis for axis in axes]

    def outputs(self) -> list[str]:
        """The names of all that is computed and can be an output."""
        return [*self.whole, *self.real[2:]]

    def _is_kept(self, grow: Any, names: list[str]) -> bool:
        """Let the graph grow; undo it if the model does not run then, or computes too much."""
        before = len(self.nodes), len(self.weights), len(names)
        with suppress(ModelError):
            grow()
            values = [found[names[-1]] for found in run(self.model(names[-1:]))]
            if all(value.size <= (40 if names is self.whole else _MOST_VALUES) for value in values):
                return True
        del self.nodes[before[0] :], self.weights[before[1] :], names[before[2] :]
        return False

    def _constant(self, value: object) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value, np.int64), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def _node(self, op: str, *inputs: str, **attrs: Any) -> str:
        """A node, or an If whose branches are that node and read all from outside."""
        name = f"t{len(self.nodes)}_{self._draw.randrange(10**6)}"
        if op == "Shape" or self._draw.random() > 0.07:
            self.nodes.append(helper.make_node(op, inputs, [name], **attrs))
            return name
        branches = {}
        for side in ("then_branch", "else_branch"):
            out = helper.make_tensor_value_info(f"{name}/{side}", attrs.get("to", TensorProto.INT64), None)
            body = [helper.make_node(op, inputs, [out.name], **attrs)]
            branches[side] = helper.make_graph(body, side, [], [out])
        self.nodes.append(helper.make_node("If", ["yes"], [name], **branches))
        return name

    def _hidden(self, name: str) -> str:
        """A constant, often behind nodes that leave its value."""
        way = self._draw.random()
        if way < 0.5:
            return name
        if way < 0.7:
            return self._node("Identity", name)
        if way < 0.8:
            narrow = self._node("Cast", name, to=TensorProto.INT32)
            return self._node("Cast", narrow, to=TensorProto.INT64)
        return self._node("Sub", self._node("Add", name, self._constant([1])), self._constant([1]))

    def _bound(self, low: int, high: int) -> str:
        return self._hidden(self._constant([self._draw.randint(low, high)]))

    def _grow(self) -> None:
        """One more INT64 tensor."""
        draw, op = self._draw, self._draw.choice(_OPS)
        if op == "Shape" or not self.whole:
            attrs = {} if self._opset < 15 else {"start": draw.randint(-3, 2)}
            self.whole.append(self._node("Shape", draw.choice(self.real), **attrs))
            return
        source, other = draw.choice(self.whole[-4:]), draw.choice(self.whole[-4:])
        if op == "Gather":
            index = self._hidden(
                self._constant(draw.choice([0, -1, [0], [1], [-1, 0], [[0, 1]], [[0], [1]]]))
            )
            made = self._node("Gather", source, index, axis=draw.choice([0, 0, 0, -1, 1]))
        elif op == "Slice":
            more = [self._hidden(self._constant([draw.choice([0, 0, -1, 1])]))]
            more += [self._hidden(self._constant([draw.choice([1, 2, -1])]))]
            made = self._node(
                "Slice", source, self._bound(-3, 3), self._bound(-3, 4), *more[: draw.randint(0, 2)]
            )
        elif op == "Concat":
            other = draw.choice([other, self._constant([draw.randint(1, 3)])])
            made = self._node("Concat", source, other, axis=draw.choice([0, 0, -1]))
        elif op == "Squeeze":
            made = self._node("Squeeze", source, *[self._constant([0])][: draw.randint(0, 1)])
        elif op == "Unsqueeze":
            made = self._node("Unsqueeze", source, self._hidden(self._constant([draw.choice([0, 0, 1, -1])])))
        elif op == "Cast":
            made = self._node(
                "Cast", self._node("Cast", source, to=draw.choice(_NARROW)), to=TensorProto.INT64
            )
        elif op == "Math":
            other = draw.choice([other, self._constant(draw.choice([0, 1, 2, [1], [2], [1, 2]]))])
            pair = draw.choice([(source, other), (other, source)])
            made = self._node(draw.choice(["Add", "Sub", "Mul", "Div", "Max"]), *pair)
        elif op == "Reshape":
            made = self._node("Reshape", source, self._constant(draw.choice([[-1], [1, -1], [-1, 1]])))
        else:
            made = self._node({"Reduce": "Abs"}.get(op, op), source)
        self.whole.append(made)

    def _use(self) -> None:
        """A tensor whose shape the last one is."""
        op = self._draw.choice(["ConstantOfShape", "Reshape", "Expand"])
        shapes = [found[self.whole[-1]] for found in run(self.model(self.whole[-1:]))]
        huge = any(math.prod(np.abs(shape).ravel().tolist()) > _MOST_VALUES for shape in shapes)
        if shapes[0].ndim != 1 or huge:
            raise ModelError("no shape", "")
        data = [] if op == "ConstantOfShape" else [self._draw.choice(self.real)]
        self.real.append(f"t{len(self.nodes)}r")
        self.nodes.append(helper.make_node(op, [*data, self.whole[-1]], self.real[-1:]))


def _constant_node(tensor: onnx.TensorProto) -> onnx.NodeProto:
    """The constant as exporters write it: numbers in an attribute, tensors where they have several axes."""
    value = numpy_helper.to_array(tensor)
    kind = {0: {"value_int": int(value.ravel()[0])}, 1: {"value_ints": value.ravel().tolist()}}
    return helper.make_node("Constant", [], [tensor.name], **kind.get(value.ndim, {"value": tensor}))


def run(model: onnx.ModelProto, feeds: Sequence[Arrays] = FEEDS) -> list[Arrays]:
    """The outputs for each of the feeds."""
    session = Unoptimised(model.SerializeToString())
    return [session.run(feed) for feed in feeds]


def contradictions(inferred: onnx.ModelProto, values: Arrays) -> list[str]:
    """The tensors of another rank or shape than inference told; a name of axes must have one length.

    A name of an axis that is empty tells nothing: Reshape takes its 0 for a copy, as ONNX's inference knows.
    """
    told = {
        item.name: item.type.tensor_type
        for item in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
    }
    named: dict[str, set[int]] = {}
    wrong = set()
    for name, value in values.items():
        if name not in told or not told[name].HasField("shape"):
            continue
        axes = told[name].shape.dim
        if len(axes) != value.ndim:
            wrong.add(name)
            continue
        for axis, length in zip(axes, value.shape, strict=True):
            if axis.HasField("dim_value") and axis.dim_value != length:
                wrong.add(name)
            if axis.dim_param:
                named.setdefault(axis.dim_param, set()).add(length)
    return sorted(wrong | {name for name, lengths in named.items() if len(lengths) > 1 and 0 not in lengths})
