"""Random small graphs around the patterns: whatever the surroundings, the function stays, a second run rests.

The graphs mix the operators that rules look for with fan-out, intermediates that are outputs, shared weights,
broadcast constants, negative axes, dynamic axes, FP16 and optional inputs that are left out.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings, strategies as st
from onnx import TensorProto, helper, numpy_helper

from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.rules import RULES

_UNARY = ("Relu", "Identity", "Neg", "Sigmoid", "Abs", "Dropout", "Tanh", "Exp", "Clip", "Cast", "Transpose",
          "Reshape", "Softmax", "Pad", "ReduceMean", "LayerNorm", "WideNorm", "Silu", "Gelu", "Quantise",
          "If", "Twins", "Attend", "Hide")  # fmt: skip
_BINARY = ("Add", "Mul", "Sub", "Div")
_MOVED = ("Shuffle", "Reduce", "Merged", "Cut", "Joined", "Chosen", "Flagged")
_WEIGHTED = ("Conv", "BatchNormalization", "MatMul")


class _Grower:
    """Builds a graph of rank-4 tensors [N, 4, 6, 6] node by node."""

    def __init__(self, draw: st.DrawFn, unary: tuple[str, ...]) -> None:
        self.draw = draw
        self.ops = {"unary": unary, "binary": _BINARY, "moved": _MOVED, "weighted": _WEIGHTED}
        self.half = draw(st.booleans())
        self.type = TensorProto.FLOAT16 if self.half else TensorProto.FLOAT
        self.rng = np.random.default_rng(draw(st.integers(0, 99)))
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.tensors = ["x"]

    def constant(self, values: object, integer: bool = False) -> str:
        dtype = np.int64 if integer else np.float16 if self.half else np.float32
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def some(self, *shape: int) -> str:
        """A weight of that shape: often one that is there already."""
        same = [
            item.name for item in self.weights if tuple(item.dims) == shape and item.data_type == self.type
        ]
        if same and self.draw(st.booleans()):
            return str(self.draw(st.sampled_from(same)))
        return self.constant(0.3 * self.rng.standard_normal(shape))

    def node(self, op: str, *inputs: str, **attrs: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attrs))
        return name

    def unary(self, op: str, x: str) -> str:
        if op == "Cast":
            wide = self.node(
                "Cast", x, to=self.draw(st.sampled_from([TensorProto.DOUBLE, TensorProto.FLOAT16]))
            )
            return self.node("Cast", wide, to=self.type)
        if op == "Clip":
            low = self.draw(st.sampled_from(["", self.constant(-0.5)]))
            return self.node("Clip", x, low, self.constant(self.draw(st.sampled_from([0.25, 6.0]))))
        if op == "Transpose":
            order = self.draw(st.permutations([2, 3]))
            return self.node("Transpose", x, perm=[0, 1, *order])
        if op == "Reshape":
            flat = self.node("Reshape", x, self.constant([0, 4, -1], integer=True))
            return self.node("Reshape", flat, self.constant([-1, 4, 6, 6], integer=True))
        if op == "Softmax":
            return self.node("Softmax", x, axis=self.draw(st.sampled_from([-1, 1, 2])))
        if op == "Pad":
            padded = self.node("Pad", x, self.constant([0, 0, 1, 0, 0, 0, 1, 0], integer=True))
            weight = self.some(4, 4, 3, 1)
            return self.node("Conv", padded, weight)
        if op == "ReduceMean":
            axes = self.draw(st.sampled_from([[2, 3], [-1], [-2, -1], [1]]))
            return self.node("Add", x, self.node("ReduceMean", x, axes=axes))
        if op == "LayerNorm":
            axes = self.draw(st.sampled_from([[-1], [2, 3], [1]]))
            off = self.node("Sub", x, self.node("ReduceMean", x, axes=axes))
            square = (
                self.node("Pow", off, self.constant(2.0))
                if self.draw(st.booleans())
                else self.node("Mul", off, off)
            )
            mean = self.node("ReduceMean", square, axes=axes)
            return self.node("Div", off, self.node("Sqrt", self.node("Add", mean, self.constant(1e-2))))
        if op == "Silu":
            return self.node("Mul", x, self.node("Sigmoid", x))
        if op == "Gelu":
            curve = self.node("Erf", self.node("Div", x, self.constant(np.sqrt(2.0))))
            return self.node(
                "Mul", self.node("Mul", x, self.node("Add", curve, self.constant(1.0))), self.constant(0.5)
            )
        if op in ("If", "WideNorm"):
            return self.constant_if(x) if op == "If" else self.wide_norm(x)
        if op == "Twins":  # products of one input, and a bottleneck of an odd width
            wide = self.node("Conv", x, self.some(12, 4, 1, 1))
            narrow = self.node("Conv", self.node("Relu", wide), self.some(4, 12, 1, 1))
            return self.node("Add", narrow, self.node("Conv", x, self.some(4, 4, 1, 1)))
        if op in ("Attend", "Hide"):  # heads of 16, scaled; the mask hides by a sum or by a selection
            query, key = (self.node("MatMul", x, self.some(6, 16)) for _ in range(2))
            turned = self.node("Transpose", key, perm=[0, 1, 3, 2])
            scores = self.node("Div", self.node("MatMul", query, turned), self.constant(4.0))
            if op == "Hide":
                hidden = self.constant(-np.inf if self.half else -1e38)
                scores = self.node("Where", "causal", scores, hidden)
            return self.node("MatMul", self.node("Softmax", scores, axis=-1), x)
        if op == "Quantise":
            low = self.node("QuantizeLinear", self.node("Cast", x, to=1), "scale", "zero")
            return self.node("Cast", self.node("DequantizeLinear", low, "scale", "zero"), to=self.type)
        return self.node(op, x)

    def wide_norm(self, x: str) -> str:
        """A normalisation in FP32: the operator or written out, scaled in FP32 or behind the cast back."""
        wide, scale = self.node("Cast", x, to=TensorProto.FLOAT), self.some(6)
        widened = self.node("Cast", scale, to=TensorProto.FLOAT)
        form = self.draw(st.sampled_from(["operator", "scaled", "scaled first", "scaled behind"]))
        if form == "operator":
            return self.node("Cast", self.node("LayerNormalization", wide, widened), to=self.type)
        off = self.node("Sub", wide, self.node("ReduceMean", wide, axes=[-1]))
        mean = self.node("ReduceMean", self.node("Mul", off, off), axes=[-1])
        root = self.node("Sqrt", self.node("Add", mean, "epsilon"))
        top = self.node("Mul", widened, off) if form == "scaled first" else off
        normal = self.node("Div", top, root)
        normal = self.node("Mul", normal, widened) if form == "scaled" else normal
        narrow = self.node("Cast", normal, to=self.type)
        return self.node("Mul", scale, narrow) if form == "scaled behind" else narrow

    def moved(self, op: str, x: str) -> str:
        if op == "Shuffle":  # an axis of length 1 put in, axes changed over, and all of it reshaped back
            place, order = self.draw(st.integers(-5, 4)), self.draw(st.permutations(range(5)))
            longer = self.node("Unsqueeze", x, self.constant([place], integer=True))
            turned = self.node("Transpose", longer, perm=list(order))
            return self.node("Reshape", turned, self.constant([-1, 4, 6, 6], integer=True))
        if op == "Merged":  # two axes merged, the middle turned, and the axes put back, rightly or not
            flat = self.node("Reshape", x, self.constant([-1, 6, 6], integer=True))
            turned = self.node("Transpose", flat, perm=list(self.draw(st.permutations(range(3)))))
            return self.node("Reshape", turned, self.constant([-1, 4, 6, 6], integer=True))
        if op == "Cut":  # two axes turned round, one at a time, or one of them twice
            for _ in range(2):
                bounds = (-1, -(2**31), self.draw(st.integers(-3, 3)), -1)
                x = self.node("Slice", x, *(self.constant([value], integer=True) for value in bounds))
            return x
        if op == "Joined":  # parts of parts, of which as much is kept as went in
            axis, other = self.draw(st.sampled_from([(1, 1), (1, -3), (2, -2), (2, 3)]))
            inner = self.node("Concat", x, self.node("Neg", x), axis=axis)
            more = inner if self.draw(st.booleans()) else self.node("Concat", x, x, axis=axis)
            joined = self.node("Concat", inner, more, axis=other)
            ends = self.constant([4, 6, 6], integer=True)
            return self.node("Slice", joined, self.constant([0] * 3, integer=True), ends,
                             self.constant([1, 2, 3], integer=True))  # fmt: skip
        if op == "Chosen":  # by an inverted mask
            inverted = self.node("Not", "causal")
            return self.node("Where", inverted, x, self.constant(0.5))
        if op == "Flagged":  # by conditions as numbers, one of which may be read on, and by a triangle
            over, under = (
                self.node("Cast", self.node("Greater", x, self.constant(bound)), to=self.type)
                for bound in (-0.5, 0.5)
            )
            ones = self.node("Expand", self.constant(1.0), self.constant([6, 6], integer=True))
            both = self.node("Mul", over, under) if self.draw(st.booleans()) else over
            masked = self.node("Mul", both, self.node("Trilu", ones))
            return self.node("Sub", masked, self.draw(st.sampled_from([x, under])))
        # axes dropped and put back, kept and taken out
        axes, others = (self.draw(st.sampled_from([[2, 3], [-1, -2], [1], [-1]])) for _ in range(2))
        least = self.node("ReduceMin", x, axes=axes, keepdims=0)
        back = self.node("Unsqueeze", least, self.constant([axis % 4 for axis in axes], integer=True))
        most = self.node("ReduceMax", x, axes=others)
        flat = self.node("Squeeze", most, self.constant(others, integer=True))
        again = self.node("Unsqueeze", flat, self.constant([axis % 4 for axis in others], integer=True))
        return self.node("Sub", self.node("Add", x, back), again)

    def constant_if(self, x: str) -> str:
        """An If that is decided; both branches read from outside and share the names inside them."""
        branches = {}
        for side, last in (("then_branch", "Neg"), ("else_branch", "Abs")):
            name = f"b{len(self.nodes)}{side}"
            body = [helper.make_node("Identity", [x], ["inner"]), helper.make_node(last, ["inner"], [name])]
            out = helper.make_tensor_value_info(name, self.type, [None, 4, 6, 6])
            branches[side] = helper.make_graph(body, side, [], [out])
        return self.node("If", self.draw(st.sampled_from(["yes", "no"])), **branches)

    def binary(self, op: str, x: str) -> str:
        shape = self.draw(st.sampled_from([(), (1,), (4, 1, 1), (1, 4, 1, 1), (6,), (1, 1, 1, 1)]))
        neutral = self.draw(st.booleans())
        fill = np.full(shape, 0.0 if op in ("Add", "Sub") else 1.0)
        other = self.constant(fill if neutral else np.abs(self.rng.standard_normal(shape)) + 0.5)
        if op in ("Add", "Mul") and self.draw(st.booleans()):
            return self.node(op, other, x)
        return self.node(op, x, other)

    def weighted(self, op: str, x: str) -> str:
        if op == "Conv":
            size = self.draw(st.sampled_from([1, 3]))
            bias = [self.some(4)] if self.draw(st.booleans()) else []
            return self.node("Conv", x, self.some(4, 4, size, size), *bias, pads=[size // 2] * 4)
        if op == "MatMul":
            return self.node("MatMul", x, self.some(6, 6))
        variance = self.constant(np.abs(self.rng.standard_normal(4)) + 0.5)
        return self.node("BatchNormalization", x, self.some(4), self.some(4), self.some(4), variance)

    def grow(self) -> None:
        x = self.draw(st.sampled_from(self.tensors[-3:]))
        kind = self.draw(st.sampled_from(["unary", "binary", "moved", "weighted", "join"]))
        if kind == "join":
            new = self.node("Add", x, self.draw(st.sampled_from(self.tensors)))
        else:
            new = getattr(self, kind)(self.draw(st.sampled_from(self.ops[kind])), x)
        self.tensors.append(new)


@st.composite
def _models(draw: st.DrawFn, unary: tuple[str, ...] = _UNARY) -> onnx.ModelProto:
    grower = _Grower(draw, unary)
    for _ in range(draw(st.integers(2, 9))):
        grower.grow()
    outputs = {grower.tensors[-1], *draw(st.lists(st.sampled_from(grower.tensors[1:]), max_size=2))}
    batch = draw(st.sampled_from(["N", 2]))
    shape = [batch, 4, 6, 6]
    given = {
        "scale": np.float32(0.05),
        "zero": np.int8(0),
        "epsilon": np.float32(0.01),
        "yes": True,
        "no": False,
    }
    for name, value in {**given, "causal": np.tril(np.ones((6, 6), bool))}.items():
        grower.weights.append(numpy_helper.from_array(np.asarray(value), name))
    graph = helper.make_graph(
        grower.nodes, "g",
        [helper.make_tensor_value_info("x", grower.type, shape)],
        [helper.make_tensor_value_info(name, grower.type, [batch, None, None, None])
         for name in sorted(outputs)],
        grower.weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _holds(made: onnx.ModelProto, rules: list[str] | None = None) -> None:
    """A rewrite keeps the function and the rules of ONNX, and a second one changes nothing."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        onnx.save(made, folder / "in.onnx")
        trace = rewrite_model(
            folder / "in.onnx", folder / "out.onnx", target="10", rules=rules, clean=not rules
        )
        assert trace.undone == (), trace.undone
        assert not any("bound" in note for note in trace.notes)
        assert rules or trace.nodes_after <= trace.nodes_before
        onnx.checker.check_model(onnx.load(folder / "out.onnx"), full_check=True)
        rewrite_model(
            folder / "out.onnx", folder / "again.onnx", target="10", rules=rules, clean=not rules, check=False
        )
        assert (folder / "out.onnx").read_bytes() == (folder / "again.onnx").read_bytes()


@settings(derandomize=True, suppress_health_check=list(HealthCheck))
@given(made=_models())
def test_any_graph_stays_the_same_function_and_a_second_rewrite_rests(made: onnx.ModelProto) -> None:
    _holds(made)


@settings(derandomize=True, suppress_health_check=list(HealthCheck))
@given(made=_models(unary=("LayerNorm", "WideNorm", "Cast", "Relu")))
def test_normalisations_amid_anything_stay_the_same_function(made: onnx.ModelProto) -> None:
    _holds(made)


_ALL = [rule.name for rule in RULES]


@settings(derandomize=True, suppress_health_check=list(HealthCheck))
@given(made=_models())
def test_the_rules_that_must_be_requested_keep_any_function_too(made: onnx.ModelProto) -> None:
    _holds(made, _ALL)
