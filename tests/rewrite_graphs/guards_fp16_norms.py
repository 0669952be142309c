# ruff: noqa: E501 - graphs read best one statement after another
"""Normalisations that are not rewritten, or keep their casts."""

from __future__ import annotations

from tests.rewrite_graphs.case import Case, left

CASES: tuple[Case, ...] = (
    left(
        "rms-norm",
        "old opset",
        """
        # c: float16[8]
        g (float16[N,S,8] x) => (float16[N,S,8] y) <float two = {2.0}, float eps = {0.00001}>
        {a = Cast<to=1>(x) p = Pow(a, two) q = ReduceMean<axes=[-1]>(p) r = Add(q, eps) s = Sqrt(r) u = Div(a, s)
         b = Cast<to=10>(u) y = Mul(c, b)}""",
        "needs opset 23",
    ),
    left(
        "rms-norm",
        "a dynamic axis",
        """
        g (float[N,S] x) => (float[N,S] y) <float two = {2.0}, float eps = {0.00001}, int64[1] ax = {-1}>
        {p = Pow(x, two) q = ReduceMean(p, ax) r = Add(q, eps) s = Sqrt(r) y = Div(x, s)}""",
        "axis is dynamic",
        opset=23,
    ),
    left(
        "rms-norm",
        "a scale of the sequence",
        """
        # c: float[6,1]
        g (float[N,6,8] x) => (float[N,6,8] y) <float two = {2.0}, float eps = {0.00001}, int64[1] ax = {-1}>
        {p = Pow(x, two) q = ReduceMean(p, ax) r = Add(q, eps) s = Sqrt(r) u = Div(x, s) y = Mul(u, c)}""",
        "along another axis",
        opset=23,
    ),
    left(
        "rms-norm",
        "a scale that adds an axis, behind casts",
        """
        # c: float16[1,1,4]
        g (float16[2,4] x) => (float16[1,2,4] y) <float e = {0.1}, int64[1] ax = {-1}>
        {a = Cast<to=1>(x) q = Mul(a, a) v = ReduceMean(q, ax) w = Add(v, e) r = Sqrt(w) n = Div(a, r) b = Cast<to=10>(n) y = Mul(b, c)}""",
        "adds an axis",
        opset=23,
    ),
    left(
        "rms-norm",
        "the root in use",
        """
        # c: float16[8]
        g (float16[N,S,8] x) => (float16[N,S,8] y, float[N,S,1] s) <float two = {2.0}, float eps = {0.00001}, int64[1] ax = {-1}>
        {a = Cast<to=1>(x) p = Pow(a, two) q = ReduceMean(p, ax) r = Add(q, eps) s = Sqrt(r) u = Div(a, s) b = Cast<to=10>(u)
         y = Mul(c, b)}""",
        "elsewhere",
        opset=23,
    ),
)
