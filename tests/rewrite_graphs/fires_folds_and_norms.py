# ruff: noqa: E501 - graphs read best one statement after another
"""Where the rules that clean, fold constants and compose norms fire."""

from __future__ import annotations

from tests.rewrite_graphs.case import Case, case

CASES: tuple[Case, ...] = (
    case(
        "drop-dead",
        "a branch that leads nowhere",
        """
        g (float[N,4] x) => (float[N,4] y) {a = Relu(x) b = Exp(a) c = Neg(b) y = Abs(a)}""",
    ),
    case(
        "erase-identity",
        "in the middle",
        "g (float[N,4] x) => (float[N,4] y) {a = Relu(x) b = Identity(a) y = Neg(b)}",
    ),
    case(
        "erase-identity",
        "over a shared initializer",
        """
        # w: float[4,4]
        g (float[N,4] x) => (float[N,4] y) {u = Identity(w) a = MatMul(x, w) y = MatMul(a, u)}""",
    ),
    case(
        "erase-identity",
        "before an output",
        "g (float[N,4] x) => (float[N,4] y) {a = Relu(x) y = Identity(a)}",
    ),
    case(
        "erase-identity",
        "dropout",
        "g (float[N,4] x) => (float[N,4] y) {a = Relu(x) b = Dropout(a) y = Neg(b)}",
    ),
    case(
        "erase-identity",
        "cast to the same",
        "g (float[N,4] x) => (float[N,4] y) {a = Cast<to=1>(x) y = Neg(a)}",
    ),
    case(
        "fold-bias",
        "of a channel, as ONNX Runtime stores it",
        """
        # w: int8[4,2]
        g (float[N,4] x) => (float[N,2] y) <float s = {0.1}, int8 z = {0}, float t = {0.02}, int32[2] b = {700,-3}, float[2] u = {0.002,0.004}, int32[2] n = {0,0}>
        {q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) k = DequantizeLinear(w, t, z) c = DequantizeLinear<axis=0>(b, u, n) y = Gemm(d, k, c)}""",
    ),
    case(
        "erase-arithmetic",
        "all neutral elements",
        """
        g (float[N,4] x) => (float[N,4] y)
        <float one = {1.0}, float zero = {0.0}, float[4] ones = {1,1,1,1}>
        {a = Mul(one, x) b = Div(a, ones) c = Add(b, zero) d = Sub(c, zero) e = Pow(d, one) y = Neg(e)}""",
        5,
    ),
    case(
        "cast-like",
        "behind a constant",
        """
        g (float16[N,4] x) => (float16[N,4] y) <float c = {2.0}> {d = CastLike(c, x) y = Mul(x, d)}""",
    ),
    case(
        "reshape-chain",
        "reshape, unsqueeze, flatten",
        """
        g (float[N,4,6] x) => (float[N,24] y) <int64[3] s = {0,8,3}, int64[1] u = {1}>
        {a = Reshape(x, s) b = Unsqueeze(a, u) c = Flatten(b) y = Neg(c)}""",
        2,
    ),
    case(
        "plain-reshape",
        "heads of attention",
        """
        g (float[N,S,8] x) => (float[N,S,2,4] y) <int64 i = {0}, int64 j = {1}, int64[1] z = {0}, int64[1] h = {2}, int64[1] d = {4}>
        {s = Shape(x) a = Gather(s, i) b = Gather(s, j) c = Unsqueeze(a, z) e = Unsqueeze(b, z) f = Concat<axis=0>(c, e, h, d)
         r = Relu(x) y = Reshape(r, f)}""",
    ),
    case(
        "fold-shapes",
        "static axes of a dynamic shape",
        """
        g (float[N,4,5] x) => (int64[2] y) <int64[2] i = {1,2}> {s = Shape(x) a = Gather(s, i) y = Neg(a)}""",
    ),
    case(
        "fold-shapes",
        "start and end",
        """
        g (float[N,4,5] x) => (int64[1] y) {s = Shape<start=1, end=2>(x) y = Neg(s)}""",
    ),
    case(
        "fold-constants",
        "arithmetic on constants",
        """
        g (float[N,4] x) => (float[N,4] y) <float a = {2.0}, float b = {3.0}> {c = Mul(a, b) d = Sqrt(c) y = Mul(x, d)}""",
    ),
    case(
        "drop-unused",
        "indices of a pool",
        """
        g (float[N,2,8,8] x) => (float[N,2,4,4] y) {y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)}""",
    ),
    case(
        "share-equal",
        "equal constants, equal nodes",
        """
        g (float[N,4] x) => (float[N,4] y) <float a = {2.0}, float b = {2.0}>
        {c = Mul(x, a) d = Mul(x, b) e = Relu(c) f = Neg(d) y = Add(e, f)}""",
        2,
    ),
    case(
        "pad-into-conv",
        "conv",
        """
        # w: float[4,2,3,3]
        g (float[N,2,8,8] x) => (float[N,4,9,8] y) <int64[8] p = {0,0,1,1,0,0,2,1}>
        {a = Pad(x, p) y = Conv<pads=[0,0,0,0]>(a, w)}""",
    ),
    case(
        "pad-into-conv",
        "average pool that counts padding",
        """
        g (float[N,2,8,8] x) => (float[N,2,9,9] y) <int64[8] p = {0,0,1,1,0,0,1,1}>
        {a = Pad(x, p) y = AveragePool<kernel_shape=[2,2], count_include_pad=1>(a)}""",
    ),
    case(
        "fold-batchnorm",
        "conv with bias",
        """
        # w: float[4,2,3,3]
        # b: float[4]
        # g: float[4]
        # h: float[4]
        # m: float[4]
        # v: float[4]
        graph (float[N,2,8,8] x) => (float[N,4,6,6] y) {a = Conv(x, w, b) y = BatchNormalization<epsilon=0.5>(a, g, h, m, v)}""",
    ),
    case(
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
    case(
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
    case(
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
    case(
        "fold-scale-before",
        "scale before a padded conv",
        """
        # w: float[4,2,3,3]
        # v: float[1,2,1,1]
        g (float[N,2,8,8] x) => (float[N,4,8,8] y) {a = Div(x, v) y = Conv<pads=[1,1,1,1]>(a, w)}""",
    ),
    case(
        "fold-scale-before",
        "shift before an unpadded grouped conv",
        """
        # w: float[4,2,3,3]
        # s: float[1,4,1,1]
        g (float[N,4,8,8] x) => (float[N,4,6,6] y) {a = Sub(x, s) y = Conv<group=2>(a, w)}""",
    ),
    case(
        "reduce-to-pool",
        "mean over an image",
        """
        g (float[N,4,8,8] x) => (float[N,4,1,1] y) {y = ReduceMean<axes=[-2,-1]>(x)}""",
    ),
    case(
        "layer-norm",
        "decomposed, with scale and shift",
        """
        # c: float[8]
        # d: float[8]
        g (float[N,S,8] x) => (float[N,S,8] y) <float two = {2.0}, float eps = {0.00001}>
        {m = ReduceMean<axes=[-1]>(x) a = Sub(x, m) p = Pow(a, two) q = ReduceMean<axes=[-1]>(p) r = Add(q, eps) s = Sqrt(r)
         t = Div(a, s) u = Mul(t, c) y = Add(d, u)}""",
    ),
    case(
        "layer-norm",
        "by reciprocal, bare",
        """
        g (float[N,S,8] x) => (float[N,S,8] y) <float eps = {0.00001}>
        {m = ReduceMean<axes=[2]>(x) a = Sub(x, m) p = Mul(a, a) q = ReduceMean<axes=[2]>(p) r = Add(eps, q) s = Sqrt(r)
         t = Reciprocal(s) y = Mul(a, t)}""",
    ),
    case(
        "plain-shape",
        "from and to",
        """
        g (float[N,4,H,W] x) => (int64[2] y) {y = Shape<start=-3,end=3>(x)}""",
        target="8.6",
    ),
    case(
        "plain-shape",
        "to the end",
        """
        g (float[N,4,H,W] x) => (int64[2] y) {a = Shape<start=2>(x) y = Identity(a)}""",
        target="8.6",
    ),
    case(
        "plain-instance-norm",
        "in FP32",
        """
        # c: float[4]
        # d: float[4]
        g (float[N,4,H,W] x) => (float[N,4,H,W] y) {y = InstanceNormalization<epsilon=0.001>(x, c, d)}""",
        target="8.6",
    ),
    case(
        "plain-instance-norm",
        "in FP16, three spatial axes",
        """
        # c: float16[4]
        # d: float16[4]
        g (float16[N,4,D,H,W] x) => (float16[N,4,D,H,W] y) {y = InstanceNormalization(x, c, d)}""",
        target="8.6",
    ),
    case(
        "hard-sigmoid",
        "alone",
        """
        g (float[N,8] x) => (float[N,8] y) <float three = {3.0}, float zero = {0.0}, float six = {6.0}>
        {a = Add(x, three) b = Clip(a, zero, six) y = Div(b, six)}""",
    ),
)
