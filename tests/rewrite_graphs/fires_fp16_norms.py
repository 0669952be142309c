# ruff: noqa: E501 - graphs read best one statement after another
"""Normalisations of networks in FP16, whose moments are in FP32, and other orders of their steps."""

from __future__ import annotations

from tests.rewrite_graphs.case import Case, case

CASES: tuple[Case, ...] = (
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
