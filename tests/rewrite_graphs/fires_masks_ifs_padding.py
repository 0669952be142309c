# ruff: noqa: E501 - graphs read best one statement after another
"""Where the rules on masks, conditions and padded channels fire."""

from __future__ import annotations

from tests.rewrite_graphs.case import Case, case

CASES: tuple[Case, ...] = (
    case(
        "inline-if",
        "branches that share their names",
        """
        g (float[N,4] x) => (float[N,4] y) <bool yes = {1}, bool no = {0}> {
          a = Relu(x)
          b, k = If (yes) <then_branch = t () => (float[N,4] p, float[N,4] s) <float c = {2.0}> {u = Mul(a, c) p = Neg(u) s = Abs(a)},
                           else_branch = e () => (float[N,4] q, float[N,4] r) {u = Tanh(a) q = Abs(u) r = Neg(a)}>
          d, l = If (no) <then_branch = t () => (float[N,4] p, float[N,4] s) {u = Exp(a) p = Neg(u) s = Abs(a)},
                          else_branch = e () => (float[N,4] p, float[N,4] s) <float c = {3.0}> {u = Mul(k, c) p = Abs(u) s = Neg(p)}>
          m = Add(b, d)
          y = Mul(m, l)
        }""",
        2,
    ),
    case(
        "inline-if",
        "names that a branch of another If, computed, has too",
        """
        g (float[N,4] x, bool c) => (float[N,4] y, float[N,4] z) <bool yes = {1}> {
          b = If (yes) <then_branch = t () => (float[N,4] p) {u = Relu(x) k = If (c) <then_branch = tt () => (float[N,4] s) {v = Abs(u) s = Neg(v)}, else_branch = te () => (float[N,4] r) {r = Exp(u)}> p = Neg(k)},
                       else_branch = e () => (float[N,4] q) {q = Abs(x)}>
          y = Exp(b)
          z = If (c) <then_branch = t () => (float[N,4] p) {u = Tanh(x) p = Exp(u)}, else_branch = e () => (float[N,4] q) <float k = {2.0}> {v = Mul(x, k) q = Neg(v)}>
        }""",
    ),
    case(
        "inline-if",
        "branches that hand on constants of one name",
        """
        g (float[4] x, bool c) => (float[4] y) <bool yes = {1}, bool no = {0}> {
          a = If (yes) <then_branch = t () => (float[4] p) <float[4] p = {1.0,2.0,3.0,4.0}> {}, else_branch = e () => (float[4] q) {q = Abs(x)}>
          b = If (no) <then_branch = t () => (float[4] q) {q = Abs(x)}, else_branch = e () => (float[4] p) <float[4] p = {5.0,6.0,7.0,8.0}> {}>
          d = Add(a, b)
          y = Add(d, x)
        }""",
        2,
    ),
    case(
        "inline-if",
        "the else branch makes the output, in a branch of another",
        """
        g (float[N,4] x, bool c) => (float[N,4] y) <bool no = {0}> {
          y = If (c) <then_branch = t () => (float[N,4] p) {
                        p = If (no) <then_branch = tt () => (float[N,4] s) {s = Neg(x)}, else_branch = te () => (float[N,4] z) {z = Abs(x)}>},
                      else_branch = e () => (float[N,4] q) {q = Exp(x)}>
        }""",
    ),
    case(
        "fold-shapes",
        "one axis by a scalar",
        """
        g (float[N,4,5] x) => (float[N,4,5] y, int64 n) <int64 i = {-1}, int64 j = {0}>
        {a = Relu(x) s = Shape(a) b = Gather(s, i) c = Cast<to=1>(b) y = Mul(x, c) n = Gather(s, j)}""",
    ),
    case(
        "attention-scale",
        "before a mask by selection",
        """
        g (float[N,2,S,16] q, float[N,2,16,S] k, bool[N,1,1,S] m) => (float[N,2,S,S] y) <float c = {0.25}, float low = {-1e9}>
        {a = MatMul(q, k) b = Mul(a, c) d = Where(m, b, low) y = Softmax(d)}""",
    ),
)
