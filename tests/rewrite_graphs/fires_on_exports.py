# ruff: noqa: E501 - graphs read best one statement after another
"""Where a rule fires, as exporters write networks that are not in the collection."""

from __future__ import annotations

from tests.rewrite_graphs.case import Case, case

CASES: tuple[Case, ...] = (
    case(
        "hard-sigmoid",
        "scaled before it is clipped",
        """
        g (float[N,4] x) => (float[N,4] y) <float six = {6.0}, float half = {0.5}, float l = {0.0}, float h = {1.0}>
        {a = Div(x, six) b = Add(a, half) c = Clip(b, l, h) y = Mul(x, c)}""",
    ),
    case(
        "fold-weights",
        "a normalised weight, and one that is read elsewhere too",
        """
        # w: float[32,16,3,3]
        # u: float[32,16,3,3]
        # k: float[32,1,1,1]
        g (float[N,16,8,8] x) => (float[N,32,6,6] y, float[N,32,6,6] z) <int64[3] axes = {1,2,3}>
        {n = ReduceL2<axes=[1,2,3]>(w) d = Div(w, n) v = Mul(d, k) y = Conv(x, v) t = Mul(u, k) a = Conv(x, t)
         b = Conv(x, u) z = Add(a, b)}""",
        2,
    ),
    case(
        "fold-weights",
        "above 1 MiB in the place of the weight",
        """
        # w: float[600,600]
        g (float[N,600] x) => (float[N,600] y) {a = Abs(w) b = Transpose<perm=[1,0]>(a) y = MatMul(x, b)}""",
    ),
    case(
        "fold-weights",
        "packed projections of attention, and parts of which the last is shorter",
        """
        # w: float[96,32]
        # u: float[50,32]
        g (float[N,32] x) => (float[N,32] y, float[N,64] z, float[N,16] p) <int64[2] s = {32,64}>
        {a, b = Split<axis=0>(w, s) c = Transpose<perm=[1,0]>(a) d = Transpose<perm=[1,0]>(b) y = MatMul(x, c) z = MatMul(x, d)
         e, f, h = Split<axis=0, num_outputs=3>(u) i = Transpose<perm=[1,0]>(h) p = MatMul(x, i)}""",
        2,
        opset=18,
    ),
    case(
        "fold-batchnorm",
        "a head that is run over two levels, with moments of its own for each",
        """
        # w: float[8,8,3,3]
        # g: float[8]
        # v: float[8]
        # va: float[8]
        g (float[N,8,8,8] x, float[N,8,4,4] t) => (float[N,8,6,6] y, float[N,8,2,2] z)
        {a = Conv(x, w) y = BatchNormalization(a, g, g, g, v) b = Conv(t, w) z = BatchNormalization(b, g, g, g, va)}""",
        2,
    ),
)
