# ruff: noqa: E501 - graphs read best one statement after another
"""Where a rule fires, as exporters write networks that are not in the collection."""

from __future__ import annotations

from tests.rewrite_graphs.case import Case, case

CASES: tuple[Case, ...] = (
    case(
        "erase-shuffle",
        "a Reshape to all axes but the open one, which inference gives another name",
        """
        g (float[N,2,5] x) => (float[A,5,2] y) <int64[4] s = {1,-1,2,5}, int64[3] t = {-1,2,5}>
        {a = Reshape(x, s) b = Reshape(a, t) c = Relu(b) d = Reshape(c, t) y = Transpose<perm=[0,2,1]>(d)}""",
    ),
    case(
        "hard-sigmoid",
        "scaled before it is clipped",
        """
        g (float[N,4] x) => (float[N,4] y) <float six = {6.0}, float half = {0.5}, float l = {0.0}, float h = {1.0}>
        {a = Div(x, six) b = Add(a, half) c = Clip(b, l, h) y = Mul(x, c)}""",
    ),
    case(
        "gelu",
        "tanh, factored",
        """
        g (float[N,4] x) => (float[N,4] y) <float half = {0.5}, float one = {1.0}, float r = {0.7978845608}, float k = {0.044715}>
        {a = Mul(half, x) b = Mul(x, r) c = Mul(k, x) d = Mul(c, x) e = Add(d, one) f = Mul(b, e) t = Tanh(f) u = Add(t, one)
         y = Mul(a, u)}""",
        opset=20,
    ),
    case(
        "slice-chain",
        "patches of an image, an axis at a time",
        """
        g (float[N,8,8,3] x) => (float[N,4,4,9] y) <int64[1] z = {0}, int64[1] o = {1}, int64[1] e = {9223372036854775807},
        int64[1] h = {1}, int64[1] w = {-2}, int64[1] two = {2}>
        {a = Slice(x, z, e, h, two) b = Slice(a, z, e, w, two) c = Slice(a, o, e, w, two) d = Slice(x, o, e, h, two)
         f = Slice(d, o, e, w, two) y = Concat<axis=3>(b, c, f)}""",
        3,
    ),
    case(
        "slice-chain",
        "backwards, in INT32, without steps, and the first is read elsewhere too",
        """
        g (float[6,8] x) => (float[4,3] y, float[4,8] a) <int32[1] s = {-1}, int32[1] e = {1}, int32[1] z = {0}, int32[1] m = {-1},
        int64[1] t = {2}, int64[1] u = {5}, int64[1] c = {-1}>
        {a = Slice(x, s, e, z, m) y = Slice(a, t, u, c)}""",
    ),
    case(
        "concat-chain",
        "axes counted from both ends",
        """
        g (float[N,2,3] x, float[N,4,3] z) => (float[N,12,3] y)
        {a = Concat<axis=1>(x, z) b = Relu(x) c = Concat<axis=-2>(b, x) y = Concat<axis=1>(c, b, a)}""",
        2,
    ),
    case(
        "where-not",
        "an inverted mask",
        """
        g (float[N,4,4] x, bool[N,1,4] m) => (float[N,4,4] y) <float low = {-10000.0}>
        {n = Not(m) a = Where(n, low, x) y = Softmax<axis=-1>(a)}""",
    ),
    case(
        "mask-and",
        "conditions on pairs of boxes, one of them the same for every image",
        """
        g (float[N,5,5] x, float[5,5] z) => (float[N,5,5] y) <float c = {0.5}>
        {a = Greater(x, c) b = Less(z, c) d = Cast<to=1>(a) e = Cast<to=1>(b) y = Mul(d, e)}""",
    ),
    case(
        "mask-and",
        "two after one another, in INT64",
        """
        g (float[N,5] x, float[N,5] z) => (int64[N,5] y) <float c = {0.5}>
        {a = Greater(x, c) b = Less(z, c) d = Less(x, z) e = Cast<to=7>(a) f = Cast<to=7>(b) h = Cast<to=7>(d) i = Mul(e, f)
         y = Mul(h, i)}""",
        2,
    ),
    case(
        "mask-triangle",
        "boxes before others",
        """
        g (float[N,5,5] x) => (float[N,5,5] y) <float c = {0.5}, float one = {1.0}, int64[2] s = {5,5}, int64 k = {1}>
        {a = Greater(x, c) b = Cast<to=1>(a) d = Expand(one, s) e = Trilu<upper=1>(d, k) y = Mul(b, e)}""",
    ),
    case(
        "mask-triangle",
        "no square, the lower side, without k, in FP16",
        """
        g (float16[N,2,3,5] x) => (float16[N,2,3,5] y) <int64[2] s = {3,5}>
        {a = IsNaN(x) n = Not(a) b = Cast<to=10>(n) d = ConstantOfShape<value = float16[1] {15360}>(s) e = Trilu<upper=0>(d)
         y = Mul(e, b)}""",
    ),
    case(
        "gather-nd",
        "rows of a table that is computed, and of a constant by indices that count from the end too",
        """
        # t: float[5,4]
        g (float[5,4] x, int64[N,3] i) => (float[N,3,4] y, float[2,4] z) <int64[1] e = {2}, int64[1] m = {-1}, int64[2] k = {-1,3}>
        {r = Relu(x) u = Unsqueeze(i, e) y = GatherND(r, u) v = Unsqueeze(k, m) z = GatherND(t, v)}""",
        2,
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
        "move-constant",
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
