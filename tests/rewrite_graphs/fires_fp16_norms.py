# ruff: noqa: E501 - graphs read best one statement after another
"""Normalisations of networks in FP16, whose moments are in FP32, and other orders of their steps."""

from __future__ import annotations

from tests.rewrite_graphs.case import Case, case

CASES: tuple[Case, ...] = (
    case(
        "rms-norm",
        "of FP16, as language models write it",
        """
        # c: float16[8]
        g (float16[N,S,8] x) => (float16[N,S,8] y) <float two = {2.0}, float eps = {0.00001}, float one = {1.0}, int64[1] ax = {-1}>
        {a = Cast<to=1>(x) p = Pow(a, two) q = ReduceMean(p, ax) r = Add(q, eps) s = Sqrt(r) t = Div(one, s) u = Mul(a, t)
         b = Cast<to=10>(u) y = Mul(c, b)}""",
        opset=23,
    ),
    case(
        "rms-norm",
        "of FP16, cast once for the square and once for the quotient, with one factor for all",
        """
        # c: float16[1]
        g (float16[N,S,8] x) => (float16[N,S,8] y)
        <float two = {2.0}, float eps = {0.00001}, float half = {-0.5}, int64[1] ax = {-1}>
        {a = Cast<to=1>(x) p = Pow(a, two) q = ReduceMean(p, ax) r = Add(q, eps) s = Pow(r, half) d = Cast<to=1>(x)
         u = Mul(d, s) b = Cast<to=10>(u) y = Mul(b, c)}""",
        opset=23,
    ),
    case(
        "rms-norm",
        "without scale, of what is scaled by another tensor after it",
        """
        g (float[N,S,8] x, float[N,S,8] z) => (float[N,S,8] y) <float two = {2.0}, float eps = {0.00001}, int64[1] ax = {-1}>
        {p = Pow(x, two) q = ReduceMean(p, ax) r = Add(q, eps) s = Sqrt(r) u = Div(x, s) y = Mul(u, z)}""",
        opset=23,
    ),
    case(
        "rms-norm",
        "with the quotient in FP16 in use, which keeps its cast and its scale",
        """
        # c: float16[8]
        g (float16[N,S,8] x) => (float16[N,S,8] y, float16[N,S,8] b) <float two = {2.0}, float eps = {0.00001}, int64[1] ax = {-1}>
        {a = Cast<to=1>(x) p = Pow(a, two) q = ReduceMean(p, ax) r = Add(q, eps) s = Sqrt(r) u = Div(a, s) b = Cast<to=10>(u)
         y = Mul(c, b)}""",
        opset=23,
    ),
    case(
        "rms-norm",
        "scaled first",
        """
        # c: float[8]
        g (float[N,S,8] x) => (float[N,S,8] y) <float two = {2.0}, float eps = {0.00001}, int64[1] ax = {-1}>
        {p = Pow(x, two) q = ReduceMean(p, ax) r = Add(q, eps) s = Sqrt(r) u = Mul(c, x) y = Div(u, s)}""",
        opset=23,
    ),
    case(
        "layer-norm",
        "of FP16, with moments in FP32",
        """
        # c: float16[8]
        # d: float16[8]
        g (float16[N,S,8] x) => (float16[N,S,8] y) <float two = {2.0}, float eps = {0.00001}>
        {f = Cast<to=1>(x) m = ReduceMean<axes=[-1]>(f) a = Sub(f, m) p = Pow(a, two) q = ReduceMean<axes=[-1]>(p) r = Add(q, eps)
         s = Sqrt(r) t = Div(a, s) h = Cast<to=10>(t) u = Mul(c, h) y = Add(u, d)}""",
    ),
    case(
        "layer-norm",
        "scaled before the division",
        """
        # c: float[8]
        # d: float[8]
        g (float[N,S,8] x) => (float[N,S,8] y) <float two = {2.0}, float eps = {0.00001}>
        {m = ReduceMean<axes=[-1]>(x) a = Sub(x, m) p = Pow(a, two) q = ReduceMean<axes=[-1]>(p) r = Add(q, eps) s = Sqrt(r)
         u = Mul(c, a) t = Div(u, s) y = Add(t, d)}""",
    ),
)
