# ruff: noqa: E501 - graphs read best one statement after another
"""Where the rules on activations, merged products and shapes fire."""

from __future__ import annotations

from tests.rewrite_graphs.case import Case, case

CASES: tuple[Case, ...] = (
    case(
        "hard-sigmoid",
        "hard swish",
        """
        g (float[N,8] x) => (float[N,8] y) <float three = {3.0}, float zero = {0.0}, float six = {6.0}>
        {a = Add(x, three) b = Clip(a, zero, six) c = Mul(x, b) y = Div(c, six)}""",
    ),
    case(
        "sigmoid",
        "by exp",
        """
        g (float[N,8] x) => (float[N,8] y) <float one = {1.0}>
        {a = Neg(x) b = Exp(a) c = Add(b, one) y = Div(one, c)}""",
    ),
    case(
        "sigmoid",
        "silu by exp",
        """
        g (float[N,8] x) => (float[N,8] y) <float one = {1.0}>
        {a = Neg(x) b = Exp(a) c = Add(one, b) y = Div(x, c)}""",
    ),
    case(
        "softmax",
        "with the maximum subtracted",
        """
        g (float[N,8] x) => (float[N,8] y) <int64[1] ax = {-1}>
        {m = ReduceMax<axes=[1]>(x) a = Sub(x, m) b = Exp(a) c = ReduceSum(b, ax) y = Div(b, c)}""",
    ),
    case(
        "softmax",
        "plain",
        """
        g (float[N,8] x) => (float[N,8] y) <int64[1] ax = {-1}> {b = Exp(x) c = ReduceSum(b, ax) y = Div(b, c)}""",
    ),
    case(
        "attention-scale",
        "before the mask",
        """
        g (float[N,2,S,16] q, float[N,2,16,S] k, float[N,1,1,S] m) => (float[N,2,S,S] y) <float c = {4.0}>
        {a = MatMul(q, k) b = Div(a, c) d = Add(b, m) y = Softmax(d)}""",
    ),
    case(
        "merge-matmuls",
        "q, k, v",
        """
        # w1: float[8,4]
        # w2: float[8,6]
        # w3: float[8,4]
        g (float[N,S,8] x) => (float[N,S,4] q, float[N,S,6] k, float[N,S,4] v)
        {q = MatMul(x, w1) k = MatMul(x, w2) v = MatMul(x, w3)}""",
    ),
    case(
        "plain-reshape",
        "a slice of a shape",
        """
        g (float[N,4,6,8] x) => (float[N,4,8,6] y)
        <int64[1] i = {-9223372036854775808}, int64[1] j = {-2}, int64[1] k = {9223372036854775807}, int64[1] o = {-1}>
        {s = Shape<start=0>(x) a = Slice(s, i, j) b = Slice(s, j, o) c = Slice(s, o, k) f = Concat<axis=0>(o, b, c)
         r = Reshape(x, f) t = Transpose<perm=[0,2,1]>(r) h = Concat<axis=0>(a, c, b) y = Reshape(t, h)}""",
        2,
    ),
    case(
        "plain-reshape",
        "what is left over is known",
        """
        g (float[N,S,4,8] x) => (float[N,S,32] y) <int64[1] z = {0}, int64[1] t = {2}, int64[1] o = {-1}>
        {s = Shape(x) a = Slice(s, z, t, z) f = Concat<axis=0>(a, o) y = Reshape(x, f)}""",
    ),
    case(
        "plain-reshape",
        "what is left over is empty",
        """
        g (float[N,4,6,8] x) => (float[N,M] y) <int64[1] z = {0}, int64[1] i = {1}, int64[1] t = {3}, int64[1] o = {-1}>
        {e = Slice(x, z, z, t) s = Shape(x) a = Slice(s, z, i, z) f = Concat<axis=0>(a, o) y = Reshape(e, f)}""",
    ),
    case(
        "reshape-chain",
        "a Transpose of axes of length 1 on either side",
        """
        g (float[N,4,1,8] x) => (float[N,1,32] y, float[N,8,4,1] z)
        <int64[3] s = {-1,1,32}, int64[1] u = {2}, int64[4] v = {-1,4,1,8}>
        {a = Transpose<perm=[0,2,1,3]>(x) y = Reshape(a, s)
         b = Relu(x) c = Squeeze(b, u) d = Reshape(c, v) z = Transpose<perm=[0,3,1,2]>(d)}""",
        2,
    ),
    case(
        "reshape-chain",
        "an axis that both copy",
        """
        g (float[N,S,16] x) => (float[N,T,32] y) <int64[4] s = {0,-1,2,16}, int64[3] t = {0,0,32}>
        {a = Reshape(x, s) y = Reshape(a, t)}""",
    ),
    case(
        "plain-integers",
        "the bucket of a distance",
        """
        g (int64[N,M] p) => (float[N,M] y, int64[N,M] z)
        {s = Sign(p) f = Cast<to=1>(s) a = Abs(p) b = Cast<to=1>(a) y = Mul(f, b) z = Sub(a, s)}""",
        target="8.6",
    ),
    case(
        "plain-integers",
        "powers and what is above zero",
        """
        g (int32[N,M] x) => (int32[N,M] y) <int64 two = {2}, int64 three = {3}>
        {a = Relu(x) b = Pow(a, two) c = Pow(x, three) y = Add(b, c)}""",
        3,
        target="8.6",
    ),
    case(
        "tell-kernel",
        "of a quantised kernel, whose weights may be stored so",
        """
        # w: float[4,3,3,3]
        g (float[N,3,8,8] x) => (float[N,4,6,6] y)
        <float s = {0.05}, int8 zero = {0}, float t = {0.02}>
        {xq = QuantizeLinear(x, s, zero) xd = DequantizeLinear(xq, s, zero) q = QuantizeLinear(w, t, zero) d = DequantizeLinear(q, t, zero)
         y = Conv(xd, d)}""",
        target="8.6",
    ),
    case(
        "fold-weights",
        "gates in another order",
        """
        # w: float[80,32]
        # k: float[32,80]
        g (float[N,32] x) => (float[N,80] y)
        <int64[1] a = {0}, int64[1] b = {60}, int64[1] c = {9223372036854775807}, int64[1] o = {-1}, int64[1] m = {-9223372036854775807}>
        {s = Slice(w, a, b, a) t = Slice(w, b, c, a) r = Concat<axis=0>(t, s) u = Unsqueeze(r, a) v = Squeeze(u, a)
         p = Transpose<perm=[1,0]>(v) q = MatMul(x, p) l = Slice(k, o, m, a, o) f = MatMul(x, l) y = Add(q, f)}""",
        2,
    ),
    case(
        "zero-state",
        "zeros as long as the batch, and a cell state that is given",
        """
        # w: float[1,32,6]
        # r: float[1,32,8]
        # v: float[1,24,6]
        # t: float[1,24,8]
        g (float[S,N,6] x, float[1,N,8] c) => (float[1,N,8] y, float[1,N,8] z, float[1,N,8] h)
        <int64[1] one = {1}, int64[1] two = {2}, int64[1] zero = {0}, int64[1] eight = {8}>
        {s = Shape(x) n = Slice(s, one, two) f = Concat<axis=0>(two, n, eight) o = ConstantOfShape(f)
         i = Slice(o, zero, one, zero) a, y = LSTM<hidden_size=8>(x, w, r, , , i, c)
         b, z = GRU<hidden_size=8>(x, v, t, , , i) d, h, e = LSTM<hidden_size=8>(x, w, r, , , i, i)}""",
        3,
    ),
)
