# ruff: noqa: E501 - graphs read best one statement after another
"""Where new constants would leave their type's range, operands are empty, no floats, or 0/0."""

from __future__ import annotations

from tests.rewrite_graphs.case import Case, left

CASES: tuple[Case, ...] = (
    left(
        "fold-scale",
        "beyond FP32",
        """
        g (float[N,1,8,8] x) => (float[N,1,8,8] y) <float[1,1,1,1] w = {1e20}, float c = {1e25}> {a = Conv(x, w) y = Mul(a, c)}""",
        "FP32's range",
    ),
    left(
        "fold-scale",
        "a bias that the shift carries beyond FP16",
        """
        g (float16[N,1,8,8] x) => (float16[N,1,8,8] y) <float16[1,1,1,1] w = {15360}, float16[1] b = {31742}, float16 c = {31742}>
        {a = Conv(x, w, b) y = Add(a, c)}""",
        "FP16's range",
    ),
    left(
        "fold-scale-before",
        "beyond FP16",
        """
        g (float16[N,1,8,8] x) => (float16[N,1,8,8] y) <float16[1,1,1,1] w = {17408}, float16 c = {30547}> {a = Mul(x, c) y = Conv(a, w)}""",
        "FP16's range",
    ),
    left(
        "fold-scale-before",
        "below FP16",
        """
        g (float16[N,1,8,8] x) => (float16[N,1,8,8] y) <float16[1,1,1,1] w = {5144}, float16 c = {17}> {a = Mul(x, c) y = Conv(a, w)}""",
        "FP16's range",
    ),
    left(
        "fold-scale-before",
        "a shift beyond FP32",
        """
        g (float[N,1,8,8] x) => (float[N,1,8,8] y) <float[1,1,1,1] w = {1e20}, float c = {1e25}> {a = Sub(x, c) y = Conv(a, w)}""",
        "FP32's range",
    ),
    left(
        "hard-sigmoid",
        "of whole numbers",
        """
        g (int64[N] x) => (int64[N] y) <int64 h = {3}, int64 z = {0}, int64 s = {6}> {a = Add(x, h) b = Clip(a, z, s) y = Div(b, s)}""",
        "not FP32 or FP16",
    ),
    left(
        "hard-sigmoid",
        "of FP64, of which ONNX Runtime has none",
        """
        g (double[N] x) => (double[N] y) <double h = {3.0}, double z = {0.0}, double s = {6.0}> {a = Add(x, h) b = Clip(a, z, s) y = Div(b, s)}""",
        "not FP32 or FP16",
    ),
    left(
        "reduce-to-pool",
        "of FP64, of which ONNX Runtime has none",
        "g (double[N,4,8,8] x) => (double[N,4,1,1] y) {a = Abs(x) y = ReduceMean<axes=[2,3], keepdims=1>(a)}",
        "not FP32 or FP16",
    ),
    left(
        "fold-scale",
        "no channels",
        """
        g (float[N,2,4,4] x) => (float[N,0,4,4] y) <float[0,2,1,1] w = {}, float c = {2.0}> {a = Conv(x, w) y = Mul(a, c)}""",
        "is empty",
    ),
)
