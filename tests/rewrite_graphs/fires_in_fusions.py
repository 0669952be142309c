# ruff: noqa: E501 - graphs read best one statement after another
"""Where rules fire next to the layer that TensorRT is to fuse the result with, in sizes that fill a kernel."""

from __future__ import annotations

from tests.rewrite_graphs.case import Case, case

CASES: tuple[Case, ...] = (
    case(
        "erase-identity",
        "between a convolution and its activation",
        """
        # w: float[32,16,3,3]
        g (float[N,16,16,16] x) => (float[N,32,14,14] y) {a = Conv(x, w) b = Identity(a) y = Relu(b)}""",
    ),
    case(
        "erase-arithmetic",
        "between a convolution and its activation",
        """
        # w: float[32,16,3,3]
        g (float[N,16,16,16] x) => (float[N,32,14,14] y) <float one = {1.0}>
        {a = Conv(x, w) b = Mul(a, one) y = Relu(b)}""",
    ),
    case(
        "hard-sigmoid",
        "hard swish behind a convolution",
        """
        # w: float[32,16,3,3]
        g (float[N,16,16,16] x) => (float[N,32,14,14] y) <float three = {3.0}, float zero = {0.0}, float six = {6.0}>
        {v = Conv(x, w) a = Add(v, three) b = Clip(a, zero, six) c = Mul(v, b) y = Div(c, six)}""",
    ),
    case(
        "sigmoid",
        "SiLU behind a convolution",
        """
        # w: float[32,16,3,3]
        g (float[N,16,16,16] x) => (float[N,32,14,14] y) <float one = {1.0}>
        {v = Conv(x, w) a = Neg(v) b = Exp(a) c = Add(one, b) y = Div(v, c)}""",
    ),
    case(
        "softmax",
        "in front of a selection",
        """
        g (float[N,256] x) => (float[N,5] y, int64[N,5] i) <int64[1] ax = {-1}, int64[1] k = {5}>
        {m = ReduceMax<axes=[1]>(x) a = Sub(x, m) b = Exp(a) c = ReduceSum(b, ax) d = Div(b, c) y, i = TopK(d, k)}""",
    ),
    case(
        "reduce-to-pool",
        "behind a convolution",
        """
        # w: float[32,16,3,3]
        # w2: float[32,64]
        g (float[N,16,16,16] x) => (float[N,64] y)
        {a = Conv(x, w) b = Relu(a) c = ReduceMean<axes=[2,3]>(b) d = Flatten(c) y = MatMul(d, w2)}""",
    ),
    case(
        "layer-norm",
        "between products, over a skip",
        """
        # w: float[128,128]
        # g: float[128]
        # b: float[128]
        # w2: float[128,128]
        g (float[N,64,128] x) => (float[N,64,128] y) <float two = {2.0}, float eps = {0.00001}>
        {p = MatMul(x, w) s = Add(p, x) m = ReduceMean<axes=[-1]>(s) c = Sub(s, m) q = Pow(c, two)
         v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) r = Sqrt(e) n = Div(c, r) t = Mul(n, g) u = Add(t, b)
         y = MatMul(u, w2)}""",
    ),
    case(
        "attention-scale",
        "all of attention",
        """
        g (float[N,4,64,64] q, float[N,4,64,64] k, float[N,4,64,64] v, float[N,1,1,64] m) => (float[N,4,64,64] y)
        <float c = {8.0}>
        {t = Transpose<perm=[0,1,3,2]>(k) a = MatMul(q, t) b = Div(a, c) d = Add(b, m) e = Softmax(d) y = MatMul(e, v)}""",
    ),
    case(
        "merge-matmuls",
        "attention's projections",
        """
        # w1: float[128,128]
        # w2: float[128,128]
        # w3: float[128,128]
        g (float[N,64,128] x) => (float[N,64,64] y, float[N,64,128] v)
        {q = MatMul(x, w1) k = MatMul(x, w2) v = MatMul(x, w3) t = Transpose<perm=[0,2,1]>(k) y = MatMul(q, t)}""",
    ),
)
