# ruff: noqa: E501 - graphs read best one statement after another
"""Where a rule would change the function through broadcasting, a type's range or an odd form of an operator."""

from __future__ import annotations

from tests.rewrite_graphs.case import Case, left

CASES: tuple[Case, ...] = (
    left(
        "fold-scale-before",
        "one channel spread over three",
        """
        # w: float[8,3,3,3]
        g (float[N,1,8,8] x) => (float[N,8,6,6] y) <float[3,1,1] c = {2.0,3.0,4.0}> {a = Mul(x, c) y = Conv(a, w)}""",
        "makes the channels",
    ),
    left(
        "fold-scale",
        "beyond FP16, by the bits of 65504",
        """
        # w: float16[8,4,1,1]
        g (float16[N,4,8,8] x) => (float16[N,8,8,8] y) <float16[1] c = {31743}> {a = Conv(x, w) b = Mul(a, c) y = Relu(b)}""",
        "FP16's range",
    ),
    left(
        "fold-batchnorm",
        "no number",
        """
        # w: float[2,4,1,1]
        g (float[N,4,8,8] x) => (float[N,2,8,8] y) <float[2] s = {1,1}, float[2] m = {0,0}, float[2] v = {1,-1}>
        {a = Conv(x, w) y = BatchNormalization(a, s, m, m, v)}""",
        "no number",
    ),
    left(
        "fold-weights",
        "above 1 MiB beside the weight",
        """
        # w: float[600,600]
        g (float[N,600] x) => (float[N,600] y) {a = Abs(w) b = MatMul(x, a) y = MatMul(b, w)}""",
        "stored in addition to the weight",
    ),
    left(
        "fold-weights",
        "an index out of range",
        """
        # w: float[64,64]
        g (float[N,64] x) => (float[N,64] y) <int64[1] i = {99}> {a = Gather(w, i) y = Mul(x, a)}""",
        "ONNX Runtime cannot run",
    ),
    left(
        "fold-batchnorm",
        "a large weight that is shared",
        """
        # w: float[192,192,3,3]
        # g: float[192]
        # v: float[192]
        g (float[N,192,8,8] x) => (float[N,192,6,6] y, float[N,192,6,6] z)
        {a = Conv(x, w) y = BatchNormalization(a, g, g, g, v) z = Conv(x, w)}""",
        "second copy",
    ),
    left(
        "sigmoid",
        "a one that adds an axis",
        """
        g (float[4] x) => (float[1,4] y) <float[1,1] one = {1.0}> {a = Neg(x) b = Exp(a) c = Add(b, one) y = Reciprocal(c)}""",
        "adds an axis",
    ),
    left(
        "hard-sigmoid",
        "a three that adds an axis",
        """
        g (float[4] x) => (float[1,4] y) <float[1,1] three = {3.0}, float zero = {0.0}, float six = {6.0}>
        {a = Add(x, three) b = Clip(a, zero, six) y = Div(b, six)}""",
        "adds an axis",
    ),
    left(
        "layer-norm",
        "a scale that adds an axis",
        """
        g (float[2,4] x) => (float[1,2,4] y) <float[1,1,4] g = {1,2,3,4}, float e = {0.1}>
        {m = ReduceMean<axes=[1]>(x) c = Sub(x, m) q = Mul(c, c) v = ReduceMean<axes=[1]>(q) w = Add(v, e) r = Sqrt(w)
         n = Div(c, r) y = Mul(n, g)}""",
        "adds an axis",
    ),
    left(
        "pad-into-conv",
        "a pool that rounds up",
        """
        g (float[N,2,5,5] x) => (float[N,2,A,B] y) <int64[8] p = {0,0,1,1,0,0,1,1}, float low = {-inf}>
        {a = Pad(x, p, low) y = MaxPool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(a)}""",
        "begin in the padding",
    ),
    left(
        "erase-identity",
        "a dropout of old",
        "g (float[N,4] x) => (float[N,4] y) {a = Dropout(x) y = Neg(a)}",
        "training",
        opset=6,
    ),
)
