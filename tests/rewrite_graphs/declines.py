# ruff: noqa: E501 - graphs read best one statement after another
"""Where each guard of a rule declines, with its reason."""

from __future__ import annotations

from tests.rewrite_graphs.case import Case, left

CASES: tuple[Case, ...] = (
    left(
        "plain-shape",
        "newer TensorRT",
        """
        g (float[N,4,H,W] x) => (int64[1] y) {y = Shape<start=0,end=1>(x)}""",
        "reads the attributes",
    ),
    left(
        "plain-integers",
        "an old opset",
        "g (int32[N] x) => (int32[N] y) {y = Sign(x)}",
        "no Clip of integers",
        opset=11,
        target="8.6",
    ),
    left(
        "plain-integers",
        "a computed exponent",
        "g (int32[N] x, int32[N] e) => (int32[N] y) {y = Pow(x, e)}",
        "neither 2 nor 3",
        target="8.6",
    ),
    left(
        "fold-bias",
        "a product of integers",
        """
        # w: int8[4,2]
        g (int8[N,4] x) => (float[N,2] y) <float s = {0.1}>
        {p = MatMulInteger(x, w) d = DequantizeLinear(p, s) y = Relu(d)}""",
        "is computed",
    ),
    left(
        "fold-bias",
        "an output",
        "g (float[N,2] x) => (float[N,2] z, float[2] y) <float s = {0.1}, int32[2] b = {7,3}> {z = Relu(x) y = DequantizeLinear(b, s)}",
        "output of the graph",
    ),
    left(
        "tell-kernel",
        "any kernel",
        """
        g (float[N,3,8,8] x, float[4,3,H,W] w) => (float[N,4,P,Q] y) {y = Conv(x, w)}""",
        "shape is unknown",
        target="8.6",
    ),
    left(
        "plain-instance-norm",
        "newer TensorRT",
        """
        # c: float[4]
        # d: float[4]
        g (float[N,4,H,W] x) => (float[N,4,H,W] y) {y = InstanceNormalization(x, c, d)}""",
        "has the operator itself",
    ),
    left(
        "plain-instance-norm",
        "computed scale",
        """
        # d: float[4]
        g (float[N,4,H,W] x, float[4] c) => (float[N,4,H,W] y) {y = InstanceNormalization(x, c, d)}""",
        "are computed",
        target="8.6",
    ),
    left(
        "erase-identity",
        "from input to output",
        "g (float[N,4] x) => (float[N,4] y) {y = Identity(x)}",
        "name must stay",
    ),
    left(
        "erase-identity",
        "mask in use",
        """
        g (float[N,4] x) => (float[N,4] y, bool[N,4] m) {a = Relu(x) y, m = Dropout(a)}""",
        "mask is used",
    ),
    left(
        "erase-identity",
        "training",
        """
        g (float[N,4] x) => (float[N,4] y) <float r = {0.0}, bool t = {1}> {a = Dropout(x, r, t) y = Neg(a)}""",
        "training",
    ),
    left(
        "erase-arithmetic",
        "it widens",
        """
        g (float[N,1] x) => (float[N,4] y) <float[4] one = {1,1,1,1}> {a = Mul(x, one) y = Neg(a)}""",
        "widen",
    ),
    left(
        "erase-arithmetic",
        "it adds an axis",
        """
        g (float[4] x) => (float[1,4] y) <float[1,1] one = {1.0}> {a = Mul(x, one) y = Neg(a)}""",
        "widen",
    ),
    left(
        "reshape-chain",
        "a copied axis",
        """
        g (float[N,S,6] x) => (float[A,B,C] y) <int64[2] s = {-1,6}, int64[3] t = {0,2,-1}>
        {a = Reshape(x, s) y = Reshape(a, t)}""",
        "open axis",
    ),
    left(
        "plain-reshape",
        "an unknown length",
        """
        g (float[N,S,8] x, int64[1] n) => (float[A,B,C] y) <int64 j = {1}, int64[1] z = {0}, int64[1] h = {8}>
        {s = Shape(x) b = Gather(s, j) c = Unsqueeze(b, z) f = Concat<axis=0>(c, n, h) y = Reshape(x, f)}""",
        "more than one axis",
    ),
    *(
        left(
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
    left(
        "pad-into-conv",
        "average without padding",
        """
        g (float[N,2,8,8] x) => (float[N,2,9,9] y) <int64[8] p = {0,0,1,1,0,0,1,1}>
        {a = Pad(x, p) y = AveragePool<kernel_shape=[2,2]>(a)}""",
        "count",
    ),
    left(
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
    left(
        "fold-batchnorm",
        "computed statistics",
        """
        # w: float[4,2,3,3]
        # g: float[4]
        # v: float[4]
        graph (float[N,2,8,8] x, float[4] m) => (float[N,4,6,6] y) {a = Conv(x, w) y = BatchNormalization(a, g, g, m, v)}""",
        "not constant",
    ),
    left(
        "fold-scale",
        "along the width",
        """
        # w: float[4,2,3,3]
        # c: float[6]
        g (float[N,2,8,8] x) => (float[N,4,6,6] y) {a = Conv(x, w) y = Mul(a, c)}""",
        "neither scalar",
    ),
    left(
        "fold-scale",
        "quantised weight",
        """
        # w: int8[4,2,3,3]
        g (float[N,2,8,8] x) => (float[N,4,6,6] y) <float s = {0.1}, float c = {2.0}, int8 z = {0}>
        {d = DequantizeLinear(w, s, z) a = Conv(x, d) y = Mul(a, c)}""",
        "quantised",
    ),
    left(
        "fold-scale-before",
        "shift before padding",
        """
        # w: float[4,2,3,3]
        g (float[N,2,8,8] x) => (float[N,4,8,8] y) <float s = {0.5}> {a = Add(x, s) y = Conv<pads=[1,1,1,1]>(a, w)}""",
        "zero padding",
    ),
    left(
        "reduce-to-pool",
        "axes dropped",
        "g (float[N,4,8,8] x) => (float[N,4] y) {y = ReduceMean<axes=[2,3], keepdims=0>(x)}",
        "dropped",
    ),
    left(
        "layer-norm",
        "old opset",
        """
        g (float[N,S,8] x) => (float[N,S,8] y) <float two = {2.0}, float eps = {0.00001}>
        {m = ReduceMean<axes=[-1]>(x) a = Sub(x, m) p = Pow(a, two) q = ReduceMean<axes=[-1]>(p) r = Add(q, eps) s = Sqrt(r)
         y = Div(a, s)}""",
        "needs opset 17",
        opset=16,
    ),
    left(
        "layer-norm",
        "variance in use",
        """
        g (float[N,S,8] x) => (float[N,S,8] y, float[N,S,1] q) <float two = {2.0}, float eps = {0.00001}>
        {m = ReduceMean<axes=[-1]>(x) a = Sub(x, m) p = Pow(a, two) q = ReduceMean<axes=[-1]>(p) r = Add(q, eps) s = Sqrt(r)
         y = Div(a, s)}""",
        "elsewhere",
    ),
    left(
        "softmax",
        "two axes",
        """
        g (float[N,8,8] x) => (float[N,8,8] y) <int64[2] ax = {1,2}> {b = Exp(x) c = ReduceSum(b, ax) y = Div(b, c)}""",
        "several axes",
    ),
    left(
        "softmax",
        "one axis",
        """
        g (float[4] x) => (float[4] y) <int64[1] ax = {0}> {b = Exp(x) c = ReduceSum(b, ax) y = Div(b, c)}""",
        "two axes or more",
    ),
    left(
        "attention-scale",
        "odd head size",
        """
        g (float[N,2,S,12] q, float[N,2,12,S] k) => (float[N,2,S,S] y) <float c = {4.0}>
        {a = MatMul(q, k) b = Div(a, c) y = Softmax(b)}""",
        "head size",
    ),
    left(
        "attention-scale",
        "a scale beyond FP16, 168 are the bits of 1e-5",
        """
        g (float16[N,2,S,16] q, float16[N,2,16,S] k) => (float16[N,2,S,S] y) <float16 c = {168}>
        {a = MatMul(q, k) b = Div(a, c) y = Softmax(b)}""",
        "no number",
    ),
    left(
        "attention-scale",
        "queries in INT8",
        """
        g (float[N,2,S,16] q, float[N,2,16,S] k) => (float[N,2,S,S] y) <float c = {4.0}, float s = {0.05}, int8 z = {0}>
        {i = QuantizeLinear(q, s, z) p = DequantizeLinear(i, s, z) a = MatMul(p, k) b = Div(a, c) y = Softmax(b)}""",
        "quantised",
    ),
    left(
        "merge-matmuls",
        "one weight twice",
        """
        # w: float[8,4]
        g (float[N,8] x) => (float[N,4] y, float[N,4] z) {a = MatMul(x, w) b = MatMul(x, w) y = Relu(a) z = Neg(b)}""",
        "shared",
    ),
)
