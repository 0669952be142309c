# ruff: noqa: E501 - graphs read best one statement after another
"""Small graphs for each rewrite rule: where it fires, and where each of its guards declines.

They are written in ONNX's own text form. Weights named `w…`, `v…` are filled with seeded numbers. The
fusion audit builds `FIRES` before and after on a GPU; the tests run all of them on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import parser


@dataclass(frozen=True)
class Case:
    """A graph, the rule it is for, how often the rule applies, or why it declines."""

    rule: str
    name: str
    text: str
    count: int = 0
    reason: str = ""
    opset: int = 17
    target: str = "11"

    @property
    def id(self) -> str:
        return f"{self.rule}: {self.name}"


def weights_of(text: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Lines `# w: float[4,3]` in front of a graph declare weights."""
    found = {}
    for line in text.splitlines():
        if line.strip().startswith("# "):
            name, kind = line.strip()[2:].split(": ")
            element, axes = kind.rstrip("]").split("[")
            found[name] = (element, tuple(int(axis) for axis in axes.split(",") if axis))
    return found


def model(text: str, opset: int = 17, seed: int = 1) -> onnx.ModelProto:
    """The model that `text` describes, its declared weights filled in."""
    body = "\n".join(line for line in text.splitlines() if not line.strip().startswith("# "))
    header = f'<ir_version: {8 if opset < 21 else 10}, opset_import: ["" : {opset}]>\n'
    made = parser.parse_model(header + body.strip())
    rng = np.random.default_rng(seed)
    for name, (element, shape) in weights_of(text).items():
        dtype: Any = {"float": np.float32, "float16": np.float16, "int64": np.int64, "int8": np.int8}[element]
        values = (
            rng.standard_normal(shape) if dtype in (np.float32, np.float16) else rng.integers(0, 3, shape)
        )
        if name.startswith("v"):  # variances
            values = np.abs(values) + 0.5
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(values, dtype), name))
    return made


def _case(rule: str, name: str, text: str, count: int = 1, **more: Any) -> Case:
    return Case(rule, name, text, count, **more)


def _left(rule: str, name: str, text: str, reason: str, **more: Any) -> Case:
    return Case(rule, name, text, 0, reason, **more)


FIRES: tuple[Case, ...] = (
    _case(
        "drop-dead",
        "a branch that leads nowhere",
        """
        g (float[N,4] x) => (float[N,4] y) {a = Relu(x) b = Exp(a) c = Neg(b) y = Abs(a)}""",
    ),
    _case(
        "erase-identity",
        "in the middle",
        "g (float[N,4] x) => (float[N,4] y) {a = Relu(x) b = Identity(a) y = Neg(b)}",
    ),
    _case(
        "erase-identity",
        "over a shared initializer",
        """
        # w: float[4,4]
        g (float[N,4] x) => (float[N,4] y) {u = Identity(w) a = MatMul(x, w) y = MatMul(a, u)}""",
    ),
    _case(
        "erase-identity",
        "before an output",
        "g (float[N,4] x) => (float[N,4] y) {a = Relu(x) y = Identity(a)}",
    ),
    _case(
        "erase-identity",
        "dropout",
        "g (float[N,4] x) => (float[N,4] y) {a = Relu(x) b = Dropout(a) y = Neg(b)}",
    ),
    _case(
        "erase-identity",
        "cast to the same",
        "g (float[N,4] x) => (float[N,4] y) {a = Cast<to=1>(x) y = Neg(a)}",
    ),
    _case(
        "erase-arithmetic",
        "all neutral elements",
        """
        g (float[N,4] x) => (float[N,4] y)
        <float one = {1.0}, float zero = {0.0}, float[4] ones = {1,1,1,1}>
        {a = Mul(one, x) b = Div(a, ones) c = Add(b, zero) d = Sub(c, zero) e = Pow(d, one) y = Neg(e)}""",
        5,
    ),
    _case(
        "erase-shuffle",
        "nothing moves",
        """
        g (float[N,4,5] x) => (float[N,4,5] y) <int64[3] s = {1,1,1}, int64[1] z = {0}, int64[1] e = {5}, int64[1] a = {2},
        int64[6] p = {0,0,0,0,0,0}>
        {b = Transpose<perm=[0,1,2]>(x) c = Tile(b, s) d = Slice(c, z, e, a) f = Concat<axis=1>(d) h = Pad(f, p)
         i = Expand(h, s) y = Neg(i)}""",
        6,
    ),
    _case(
        "cast-chain",
        "through a wider type",
        """
        g (float16[N,4] x) => (double[N,4] y) {a = Cast<to=1>(x) y = Cast<to=11>(a)}""",
    ),
    _case(
        "cast-like",
        "behind a constant",
        """
        g (float16[N,4] x) => (float16[N,4] y) <float c = {2.0}> {d = CastLike(c, x) y = Mul(x, d)}""",
    ),
    _case(
        "clamp-chain", "relu relu", "g (float[N,4] x) => (float[N,4] y) {a = Relu(x) b = Relu(a) y = Neg(b)}"
    ),
    _case(
        "clamp-chain",
        "clip relu clip",
        """
        g (float[N,4] x) => (float[N,4] y) <float l = {-1.0}, float h = {6.0}, float m = {0.5}>
        {a = Clip(x, l, h) b = Relu(a) c = Clip(b, , m) y = Neg(c)}""",
        2,
    ),
    _case(
        "transpose-chain",
        "two that cancel",
        """
        g (float[N,4,5] x) => (float[N,4,5] y)
        {a = Transpose<perm=[1,2,0]>(x) b = Transpose<perm=[2,0,1]>(a) y = Neg(b)}""",
    ),
    _case(
        "reshape-chain",
        "reshape, unsqueeze, flatten",
        """
        g (float[N,4,6] x) => (float[N,24] y) <int64[3] s = {0,8,3}, int64[1] u = {1}>
        {a = Reshape(x, s) b = Unsqueeze(a, u) c = Flatten(b) y = Neg(c)}""",
        2,
    ),
    _case(
        "plain-reshape",
        "heads of attention",
        """
        g (float[N,S,8] x) => (float[N,S,2,4] y) <int64 i = {0}, int64 j = {1}, int64[1] z = {0}, int64[1] h = {2}, int64[1] d = {4}>
        {s = Shape(x) a = Gather(s, i) b = Gather(s, j) c = Unsqueeze(a, z) e = Unsqueeze(b, z) f = Concat<axis=0>(c, e, h, d)
         r = Relu(x) y = Reshape(r, f)}""",
    ),
    _case(
        "shared-axes",
        "asked again after a layer",
        """
        # w: float[8,8]
        g (float[N,S,8] x) => (int64 y, float[N,S,8] z) <int64 i = {1}>
        {a = MatMul(x, w) z = Softmax(a) s = Shape(z) b = Gather(s, i) y = Neg(b)}""",
    ),
    _case(
        "transpose-reduce",
        "the transpose vanishes",
        """
        g (float[N,4,5] x) => (float[N,4] y)
        {a = Transpose<perm=[2,0,1]>(x) y = ReduceMean<axes=[0], keepdims=0>(a)}""",
    ),
    _case(
        "transpose-constant",
        "weight of a product",
        """
        # w: float[6,4]
        g (float[N,4] x) => (float[N,6] y) {t = Transpose<perm=[1,0]>(w) y = MatMul(x, t)}""",
    ),
    _case(
        "gather-axis0",
        "one column",
        """
        # w: float[4,6]
        g (int64 i) => (float[4] y) <int64 lim = {1}> {j = Min(i, lim) y = Gather<axis=1>(w, j)}""",
    ),
    _case(
        "fold-shapes",
        "static axes of a dynamic shape",
        """
        g (float[N,4,5] x) => (int64[2] y) <int64[2] i = {1,2}> {s = Shape(x) a = Gather(s, i) y = Neg(a)}""",
    ),
    _case(
        "fold-shapes",
        "start and end",
        """
        g (float[N,4,5] x) => (int64[1] y) {s = Shape<start=1, end=2>(x) y = Neg(s)}""",
    ),
    _case(
        "fold-constants",
        "arithmetic on constants",
        """
        g (float[N,4] x) => (float[N,4] y) <float a = {2.0}, float b = {3.0}> {c = Mul(a, b) d = Sqrt(c) y = Mul(x, d)}""",
    ),
    _case(
        "drop-unused",
        "indices of a pool",
        """
        g (float[N,2,8,8] x) => (float[N,2,4,4] y) {y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)}""",
    ),
    _case(
        "share-equal",
        "equal constants, equal nodes",
        """
        g (float[N,4] x) => (float[N,4] y) <float a = {2.0}, float b = {2.0}>
        {c = Mul(x, a) d = Mul(x, b) e = Relu(c) f = Neg(d) y = Add(e, f)}""",
        2,
    ),
    _case(
        "pad-into-conv",
        "conv",
        """
        # w: float[4,2,3,3]
        g (float[N,2,8,8] x) => (float[N,4,9,8] y) <int64[8] p = {0,0,1,1,0,0,2,1}>
        {a = Pad(x, p) y = Conv<pads=[0,0,0,0]>(a, w)}""",
    ),
    _case(
        "pad-into-conv",
        "average pool that counts padding",
        """
        g (float[N,2,8,8] x) => (float[N,2,9,9] y) <int64[8] p = {0,0,1,1,0,0,1,1}>
        {a = Pad(x, p) y = AveragePool<kernel_shape=[2,2], count_include_pad=1>(a)}""",
    ),
    _case(
        "fold-batchnorm",
        "conv with bias",
        """
        # w: float[4,2,3,3]
        # b: float[4]
        # g: float[4]
        # h: float[4]
        # m: float[4]
        # v: float[4]
        graph (float[N,2,8,8] x) => (float[N,4,6,6] y) {a = Conv(x, w, b) y = BatchNormalization(a, g, h, m, v)}""",
    ),
    _case(
        "fold-batchnorm",
        "grouped transposed conv",
        """
        # w: float[4,3,3,3]
        # g: float[6]
        # h: float[6]
        # m: float[6]
        # v: float[6]
        graph (float[N,4,8,8] x) => (float[N,6,10,10] y)
        {a = ConvTranspose<group=2>(x, w) y = BatchNormalization(a, g, h, m, v)}""",
    ),
    _case(
        "fold-batchnorm",
        "gemm, transposed weight, alpha and beta",
        """
        # w: float[6,4]
        # b: float[6]
        # g: float[6]
        # h: float[6]
        # m: float[6]
        # v: float[6]
        graph (float[N,4] x) => (float[N,6] y)
        {a = Gemm<transB=1, alpha=0.5, beta=2.0>(x, w, b) y = BatchNormalization(a, g, h, m, v)}""",
    ),
    _case(
        "fold-scale",
        "conv, all four",
        """
        # w: float[4,2,3,3]
        # c: float[1,4,1,1]
        # v: float[4,1,1]
        g (float[N,2,8,8] x) => (float[N,4,6,6] y) <float t = {3.0}, float u = {0.25}>
        {a = Conv(x, w) b = Mul(a, c) d = Add(t, b) e = Div(d, v) y = Sub(e, u)}""",
        4,
    ),
    _case(
        "fold-scale-before",
        "scale before a padded conv",
        """
        # w: float[4,2,3,3]
        # v: float[1,2,1,1]
        g (float[N,2,8,8] x) => (float[N,4,8,8] y) {a = Div(x, v) y = Conv<pads=[1,1,1,1]>(a, w)}""",
    ),
    _case(
        "fold-scale-before",
        "shift before an unpadded grouped conv",
        """
        # w: float[4,2,3,3]
        # s: float[1,4,1,1]
        g (float[N,4,8,8] x) => (float[N,4,6,6] y) {a = Sub(x, s) y = Conv<group=2>(a, w)}""",
    ),
    _case(
        "reduce-to-pool",
        "mean over an image",
        """
        g (float[N,4,8,8] x) => (float[N,4,1,1] y) {y = ReduceMean<axes=[-2,-1]>(x)}""",
    ),
    _case(
        "layer-norm",
        "decomposed, with scale and shift",
        """
        # c: float[8]
        # d: float[8]
        g (float[N,S,8] x) => (float[N,S,8] y) <float two = {2.0}, float eps = {0.00001}>
        {m = ReduceMean<axes=[-1]>(x) a = Sub(x, m) p = Pow(a, two) q = ReduceMean<axes=[-1]>(p) r = Add(q, eps) s = Sqrt(r)
         t = Div(a, s) u = Mul(t, c) y = Add(d, u)}""",
    ),
    _case(
        "layer-norm",
        "by reciprocal, bare",
        """
        g (float[N,S,8] x) => (float[N,S,8] y) <float eps = {0.00001}>
        {m = ReduceMean<axes=[2]>(x) a = Sub(x, m) p = Mul(a, a) q = ReduceMean<axes=[2]>(p) r = Add(eps, q) s = Sqrt(r)
         t = Reciprocal(s) y = Mul(a, t)}""",
    ),
    _case(
        "instance-norm",
        "decomposed",
        """
        # c: float[1,4,1,1]
        # d: float[4,1,1]
        g (float[N,4,H,W] x) => (float[N,4,H,W] y) <float two = {2.0}, float eps = {0.00001}>
        {m = ReduceMean<axes=[2,3]>(x) a = Sub(x, m) p = Pow(a, two) q = ReduceMean<axes=[2,3]>(p) r = Add(q, eps) s = Sqrt(r)
         t = Div(a, s) u = Mul(t, c) y = Add(u, d)}""",
    ),
    _case(
        "group-norm",
        "as PyTorch exports it",
        """
        # c: float[6,1,1]
        # d: float[6,1,1]
        g (float[N,6,H,W] x) => (float[N,6,H,W] y)
        <int64[3] s = {0,2,-1}, float[2] one = {1.0,1.0}, float[2] zero = {0.0,0.0}>
        {a = Reshape(x, s) b = InstanceNormalization(a, one, zero) e = Shape(x) f = Reshape(b, e) h = Mul(f, c) y = Add(h, d)}""",
        opset=21,
    ),
    _case(
        "rms-norm",
        "decomposed",
        """
        # c: float[8]
        g (float[N,S,8] x) => (float[N,S,8] y) <float two = {2.0}, float eps = {0.00001}, float one = {1.0}, int64[1] ax = {-1}>
        {p = Pow(x, two) q = ReduceMean(p, ax) r = Add(q, eps) s = Sqrt(r) t = Div(one, s) u = Mul(x, t) y = Mul(c, u)}""",
        opset=23,
    ),
    _case(
        "gelu",
        "erf",
        """
        g (float[N,8] x) => (float[N,8] y) <float r = {1.4142135}, float one = {1.0}, float half = {0.5}>
        {a = Div(x, r) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)}""",
        opset=20,
    ),
    _case(
        "gelu",
        "erf, half first",
        """
        g (float[N,8] x) => (float[N,8] y) <float r = {0.70710678}, float one = {1.0}, float half = {0.5}>
        {a = Mul(x, r) b = Erf(a) c = Add(one, b) d = Mul(half, x) y = Mul(d, c)}""",
        opset=20,
    ),
    _case(
        "gelu",
        "tanh",
        """
        g (float[N,8] x) => (float[N,8] y)
        <float k = {0.044715}, float three = {3.0}, float r = {0.7978845608}, float one = {1.0}, float half = {0.5}>
        {a = Pow(x, three) b = Mul(a, k) c = Add(x, b) d = Mul(c, r) e = Tanh(d) f = Add(e, one) h = Mul(half, x)
         y = Mul(h, f)}""",
        opset=20,
    ),
    _case(
        "hard-sigmoid",
        "alone",
        """
        g (float[N,8] x) => (float[N,8] y) <float three = {3.0}, float zero = {0.0}, float six = {6.0}>
        {a = Add(x, three) b = Clip(a, zero, six) y = Div(b, six)}""",
    ),
    _case(
        "hard-sigmoid",
        "hard swish",
        """
        g (float[N,8] x) => (float[N,8] y) <float three = {3.0}, float zero = {0.0}, float six = {6.0}>
        {a = Add(x, three) b = Clip(a, zero, six) c = Mul(x, b) y = Div(c, six)}""",
    ),
    _case(
        "sigmoid",
        "by exp",
        """
        g (float[N,8] x) => (float[N,8] y) <float one = {1.0}>
        {a = Neg(x) b = Exp(a) c = Add(b, one) y = Div(one, c)}""",
    ),
    _case(
        "sigmoid",
        "silu by exp",
        """
        g (float[N,8] x) => (float[N,8] y) <float one = {1.0}>
        {a = Neg(x) b = Exp(a) c = Add(one, b) y = Div(x, c)}""",
    ),
    _case(
        "softmax",
        "with the maximum subtracted",
        """
        g (float[N,8] x) => (float[N,8] y) <int64[1] ax = {-1}>
        {m = ReduceMax<axes=[1]>(x) a = Sub(x, m) b = Exp(a) c = ReduceSum(b, ax) y = Div(b, c)}""",
    ),
    _case(
        "softmax",
        "plain",
        """
        g (float[N,8] x) => (float[N,8] y) <int64[1] ax = {-1}> {b = Exp(x) c = ReduceSum(b, ax) y = Div(b, c)}""",
    ),
    _case(
        "log-softmax",
        "log of softmax",
        "g (float[N,8] x) => (float[N,8] y) {a = Softmax<axis=1>(x) y = Log(a)}",
    ),
    _case(
        "norm-reductions",
        "l1, l2, log-sum-exp",
        """
        g (float[N,8] x) => (float[N,1] y, float[N,1] z, float[N,1] u) <int64[1] ax = {1}>
        {a = Abs(x) y = ReduceSum(a, ax) b = Mul(x, x) c = ReduceSum(b, ax) z = Sqrt(c) d = Exp(x) e = ReduceSum(d, ax)
         u = Log(e)}""",
        3,
    ),
    _case(
        "narrow-indices",
        "cast in front of a gather",
        """
        # w: float[4,6]
        g (int32[N] i) => (float[N,6] y) {j = Cast<to=7>(i) y = Gather(w, j)}""",
    ),
    _case(
        "narrow-indices",
        "a constant, for 8.6",
        """
        g (float[N,6] x) => (float[N] y) <int64 i = {2}> {y = Gather<axis=1>(x, i)}""",
        target="8.6",
    ),
    _case(
        "attention-scale",
        "before the mask",
        """
        g (float[N,2,S,16] q, float[N,2,16,S] k, float[N,1,1,S] m) => (float[N,2,S,S] y) <float c = {4.0}>
        {a = MatMul(q, k) b = Div(a, c) d = Add(b, m) y = Softmax(d)}""",
    ),
    _case(
        "merge-matmuls",
        "q, k, v",
        """
        # w1: float[8,4]
        # w2: float[8,6]
        # w3: float[8,4]
        g (float[N,S,8] x) => (float[N,S,4] q, float[N,S,6] k, float[N,S,4] v)
        {q = MatMul(x, w1) k = MatMul(x, w2) v = MatMul(x, w3)}""",
    ),
    _case(
        "merge-convs",
        "parallel 1x1",
        """
        # w1: float[4,2,1,1]
        # b1: float[4]
        # w2: float[3,2,1,1]
        # b2: float[3]
        g (float[N,2,8,8] x) => (float[N,4,8,8] y, float[N,3,8,8] z)
        {a = Conv(x, w1, b1) b = Conv(x, w2, b2) y = Relu(a) z = Neg(b)}""",
    ),
    _case(
        "pad-channels",
        "12 to 16",
        """
        # w1: float[12,4,3,3]
        # b1: float[12]
        # w2: float[8,12,1,1]
        g (float[N,4,8,8] x) => (float[N,8,6,6] y) {a = Conv(x, w1, b1) b = Sigmoid(a) y = Conv(b, w2)}""",
    ),
)

DECLINES: tuple[Case, ...] = (
    _left(
        "erase-identity",
        "from input to output",
        "g (float[N,4] x) => (float[N,4] y) {y = Identity(x)}",
        "name must stay",
    ),
    _left(
        "erase-identity",
        "mask in use",
        """
        g (float[N,4] x) => (float[N,4] y, bool[N,4] m) {a = Relu(x) y, m = Dropout(a)}""",
        "mask is used",
    ),
    _left(
        "erase-identity",
        "training",
        """
        g (float[N,4] x) => (float[N,4] y) <float r = {0.0}, bool t = {1}> {a = Dropout(x, r, t) y = Neg(a)}""",
        "training",
    ),
    _left(
        "erase-arithmetic",
        "it widens",
        """
        g (float[N,1] x) => (float[N,4] y) <float[4] one = {1,1,1,1}> {a = Mul(x, one) y = Neg(a)}""",
        "widen",
    ),
    _left(
        "erase-arithmetic",
        "it adds an axis",
        """
        g (float[4] x) => (float[1,4] y) <float[1,1] one = {1.0}> {a = Mul(x, one) y = Neg(a)}""",
        "widen",
    ),
    _left(
        "cast-chain",
        "through a narrower type",
        """
        g (float[N,4] x) => (float[N,4] y) {a = Cast<to=7>(x) y = Cast<to=1>(a)}""",
        "narrower",
    ),
    _left(
        "clamp-chain",
        "shared",
        """
        g (float[N,4] x) => (float[N,4] y, float[N,4] z) {a = Relu(x) y = Relu(a) z = Neg(a)}""",
        "elsewhere",
    ),
    _left(
        "clamp-chain",
        "a computed bound",
        """
        g (float[N,4] x, float h) => (float[N,4] y) {a = Relu(x) y = Clip(a, , h)}""",
        "computed",
    ),
    _left(
        "clamp-chain",
        "bounds that cross",
        """
        g (float[N,4] x) => (float[N,4] y) <float l = {3.0}, float h = {1.0}> {a = Relu(x) y = Clip(a, l, h)}""",
        "exceeds",
    ),
    _left(
        "reshape-chain",
        "a copied axis",
        """
        g (float[N,S,6] x) => (float[A,B,C] y) <int64[2] s = {-1,6}, int64[3] t = {0,2,-1}>
        {a = Reshape(x, s) y = Reshape(a, t)}""",
        "open axis",
    ),
    _left(
        "plain-reshape",
        "an unknown length",
        """
        g (float[N,S,8] x, int64[1] n) => (float[A,B,C] y) <int64 j = {1}, int64[1] z = {0}, int64[1] h = {8}>
        {s = Shape(x) b = Gather(s, j) c = Unsqueeze(b, z) f = Concat<axis=0>(c, n, h) y = Reshape(x, f)}""",
        "more than one axis",
    ),
    _left(
        "transpose-reduce",
        "order changes",
        """
        g (float[N,4,5] x) => (float[5,4] y) {a = Transpose<perm=[0,2,1]>(x) y = ReduceMax<axes=[0], keepdims=0>(a)}""",
        "order",
    ),
    _left(
        "transpose-reduce",
        "kept axes lie elsewhere",
        """
        g (float[N,4,5] x) => (float[1,N,4] y) {a = Transpose<perm=[2,0,1]>(x) y = ReduceMax<axes=[0]>(a)}""",
        "elsewhere",
    ),
    _left(
        "transpose-constant",
        "an output",
        "# w: float[6,4]\ng (float[N,4] x) => (float[4,6] y, float[N,4] z) {y = Transpose<perm=[1,0]>(w) z = Neg(x)}",
        "name must stay",
    ),
    _left(
        "transpose-constant",
        "a large weight used twice",
        """
        # w: float[64,64]
        g (float[N,64] x) => (float[N,64] y) {t = Transpose<perm=[1,0]>(w) a = MatMul(x, t) y = MatMul(a, w)}""",
        "second copy",
    ),
    _left(
        "gather-axis0",
        "a list of indices",
        """
        # w: float[4,6]
        g (int64[N] i) => (float[4,N] y) {y = Gather<axis=1>(w, i)}""",
        "scalar",
    ),
    _left(
        "gather-axis0",
        "shared",
        """
        # w: float[2,2]
        g (int64 i, float[N,2] x) => (float[2] y, float[N,2] z) {y = Gather<axis=1>(w, i) z = MatMul(x, w)}""",
        "elsewhere",
    ),
    *(
        _left(
            "pad-into-conv",
            name,
            f"""
        # w: float[4,2,3,3]
        g (float[N,2,8,8] x) => (float[N,4,H,W] y{extra}) <int64[8] p = {{{pads}}}, float c = {{{value}}}>
        {{a = Pad<mode="{mode}">(x, p, c) y = Conv{attrs}(a, w){more}}}""",
            reason,
        )
        for name, pads, value, mode, attrs, extra, more, reason in (
            ("reflect", "0,0,1,1,0,0,1,1", "0.0", "reflect", "", "", "", "mode is reflect"),
            ("not zero", "0,0,1,1,0,0,1,1", "1.0", "constant", "", "", "", "pads with 1"),
            ("negative", "0,0,1,-1,0,0,1,1", "0.0", "constant", "", "", "", "cuts"),
            ("batch", "1,0,1,1,0,0,1,1", "0.0", "constant", "", "", "", "batch or channels"),
            ("auto_pad", "0,0,1,1,0,0,1,1", "0.0", "constant", '<auto_pad="SAME_UPPER">', "", "", "auto_pad"),
            (
                "shared",
                "0,0,1,1,0,0,1,1",
                "0.0",
                "constant",
                "",
                ", float[N,2,10,10] z",
                " z = Neg(a)",
                "elsewhere",
            ),
        )
    ),
    _left(
        "pad-into-conv",
        "average without padding",
        """
        g (float[N,2,8,8] x) => (float[N,2,9,9] y) <int64[8] p = {0,0,1,1,0,0,1,1}>
        {a = Pad(x, p) y = AveragePool<kernel_shape=[2,2]>(a)}""",
        "count",
    ),
    _left(
        "fold-batchnorm",
        "shared",
        """
        # w: float[4,2,3,3]
        # g: float[4]
        # v: float[4]
        graph (float[N,2,8,8] x) => (float[N,4,6,6] y, float[N,4,6,6] z)
        {a = Conv(x, w) y = BatchNormalization(a, g, g, g, v) z = Neg(a)}""",
        "elsewhere",
    ),
    _left(
        "fold-batchnorm",
        "shared weight",
        """
        # w: float[4,4,1,1]
        # g: float[4]
        # v: float[4]
        graph (float[N,4,8,8] x) => (float[N,4,8,8] y)
        {a = Conv(x, w) b = BatchNormalization(a, g, g, g, v) y = Conv(b, w)}""",
        "shared",
    ),
    _left(
        "fold-batchnorm",
        "computed statistics",
        """
        # w: float[4,2,3,3]
        # g: float[4]
        # v: float[4]
        graph (float[N,2,8,8] x, float[4] m) => (float[N,4,6,6] y) {a = Conv(x, w) y = BatchNormalization(a, g, g, m, v)}""",
        "not constant",
    ),
    _left(
        "fold-scale",
        "along the width",
        """
        # w: float[4,2,3,3]
        # c: float[6]
        g (float[N,2,8,8] x) => (float[N,4,6,6] y) {a = Conv(x, w) y = Mul(a, c)}""",
        "neither scalar",
    ),
    _left(
        "fold-scale",
        "quantised weight",
        """
        # w: int8[4,2,3,3]
        g (float[N,2,8,8] x) => (float[N,4,6,6] y) <float s = {0.1}, float c = {2.0}, int8 z = {0}>
        {d = DequantizeLinear(w, s, z) a = Conv(x, d) y = Mul(a, c)}""",
        "quantised",
    ),
    _left(
        "fold-scale-before",
        "shift before padding",
        """
        # w: float[4,2,3,3]
        g (float[N,2,8,8] x) => (float[N,4,8,8] y) <float s = {0.5}> {a = Add(x, s) y = Conv<pads=[1,1,1,1]>(a, w)}""",
        "zero padding",
    ),
    _left(
        "reduce-to-pool",
        "axes dropped",
        "g (float[N,4,8,8] x) => (float[N,4] y) {y = ReduceMean<axes=[2,3], keepdims=0>(x)}",
        "dropped",
    ),
    _left(
        "layer-norm",
        "old opset",
        """
        g (float[N,S,8] x) => (float[N,S,8] y) <float two = {2.0}, float eps = {0.00001}>
        {m = ReduceMean<axes=[-1]>(x) a = Sub(x, m) p = Pow(a, two) q = ReduceMean<axes=[-1]>(p) r = Add(q, eps) s = Sqrt(r)
         y = Div(a, s)}""",
        "needs opset 17",
        opset=16,
    ),
    _left(
        "layer-norm",
        "variance in use",
        """
        g (float[N,S,8] x) => (float[N,S,8] y, float[N,S,1] q) <float two = {2.0}, float eps = {0.00001}>
        {m = ReduceMean<axes=[-1]>(x) a = Sub(x, m) p = Pow(a, two) q = ReduceMean<axes=[-1]>(p) r = Add(q, eps) s = Sqrt(r)
         y = Div(a, s)}""",
        "elsewhere",
    ),
    _left(
        "group-norm",
        "old opset",
        """
        # c: float[6,1,1]
        g (float[N,6,8,8] x) => (float[N,6,8,8] y)
        <int64[3] s = {0,2,-1}, float[2] one = {1.0,1.0}, float[2] zero = {0.0,0.0}>
        {a = Reshape(x, s) b = InstanceNormalization(a, one, zero) e = Shape(x) f = Reshape(b, e) y = Mul(f, c)}""",
        "opset 21",
    ),
    _left(
        "rms-norm",
        "old TensorRT",
        """
        # c: float[8]
        g (float[N,S,8] x) => (float[N,S,8] y) <float two = {2.0}, float eps = {0.00001}, int64[1] ax = {-1}>
        {p = Pow(x, two) q = ReduceMean(p, ax) r = Add(q, eps) s = Sqrt(r) u = Div(x, s) y = Mul(c, u)}""",
        "does not read",
        opset=23,
        target="10",
    ),
    _left(
        "gelu",
        "8.6",
        """
        g (float[N,8] x) => (float[N,8] y) <float r = {1.4142135}, float one = {1.0}, float half = {0.5}>
        {a = Div(x, r) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)}""",
        "decomposed",
        opset=20,
        target="8.6",
    ),
    _left(
        "softmax",
        "two axes",
        """
        g (float[N,8,8] x) => (float[N,8,8] y) <int64[2] ax = {1,2}> {b = Exp(x) c = ReduceSum(b, ax) y = Div(b, c)}""",
        "several axes",
    ),
    _left(
        "log-softmax",
        "probabilities in use",
        """
        g (float[N,8] x) => (float[N,8] y, float[N,8] a) {a = Softmax<axis=1>(x) y = Log(a)}""",
        "elsewhere",
    ),
    _left(
        "norm-reductions",
        "squares in use",
        """
        g (float[N,8] x) => (float y, float[N,8] b) <int64[1] ax = {1}> {b = Mul(x, x) c = ReduceSum(b, ax) y = Sqrt(c)}""",
        "elsewhere",
    ),
    _left(
        "attention-scale",
        "odd head size",
        """
        g (float[N,2,S,12] q, float[N,2,12,S] k) => (float[N,2,S,S] y) <float c = {4.0}>
        {a = MatMul(q, k) b = Div(a, c) y = Softmax(b)}""",
        "head size",
    ),
    _left(
        "merge-matmuls",
        "one weight twice",
        """
        # w: float[8,4]
        g (float[N,8] x) => (float[N,4] y, float[N,4] z) {a = MatMul(x, w) b = MatMul(x, w) y = Relu(a) z = Neg(b)}""",
        "shared",
    ),
    _left(
        "pad-channels",
        "to an output",
        """
        # w: float[12,4,3,3]
        g (float[N,4,8,8] x) => (float[N,12,6,6] y) {y = Conv(x, w)}""",
        "something else",
    ),
    _left(
        "efficient-nms",
        "computed threshold",
        """
        g (float[1,S,4] b, float[1,1,S] s, float[1] t) => (int64[K,3] y) <int64[1] m = {5}>
        {y = NonMaxSuppression(b, s, m, t)}""",
        "computed",
        target="10",
    ),
)
