# ruff: noqa: E501 - graphs read best one statement after another
"""Normalisations of instances and groups, which builders know best written out."""

from __future__ import annotations

from tests.rewrite_graphs.case import Case, left

CASES: tuple[Case, ...] = (
    left(
        "reduce-to-pool",
        "a normalisation's mean",
        """
        g (float[N,3,4,4] x) => (float[N,3,4,4] y) {m = ReduceMean<axes=[2,3]>(x) y = Sub(x, m)}""",
        "of a normalisation",
    ),
    left(
        "reduce-to-pool",
        "a normalisation's variance",
        """
        g (float[N,3,4,4] x) => (float[N,3,1,1] y) {a = Mul(x, x) y = ReduceMean<axes=[2,3]>(a)}""",
        "of a normalisation",
    ),
    left(
        "layer-norm",
        "an image by itself",
        """
        g (float[N,3,4,4] x) => (float[N,3,4,4] y) <float eps = {0.00001}>
        {m = ReduceMean<axes=[2,3]>(x) a = Sub(x, m) p = Mul(a, a) q = ReduceMean<axes=[2,3]>(p) r = Add(q, eps) s = Sqrt(r)
         y = Div(a, s)}""",
        "faster written out",
    ),
    left(
        "layer-norm",
        "a group's many values",
        """
        g (float[N,2,16385] x) => (float[N,2,16385] y) <float eps = {0.00001}>
        {m = ReduceMean<axes=[2]>(x) a = Sub(x, m) p = Mul(a, a) q = ReduceMean<axes=[2]>(p) r = Add(q, eps) s = Sqrt(r)
         y = Div(a, s)}""",
        "faster written out",
    ),
)
