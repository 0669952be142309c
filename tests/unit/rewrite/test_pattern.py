"""Rules as expressions: what looks like one, but for a tensor or a factor, is another function."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.rewrite_graphs import model
from trtopt.rewrite.rewrite import rewrite_model

GELU = """g (float[4] x, float[4] z) => (float[4] y) {{
  half = Constant<value_float=0.5>()
  one = Constant<value_float=1.0>()
  factor = Constant<value_float={factor}>()
  scaled = Mul({inner}, factor)
  bell = Erf(scaled)
  above = Add(bell, one)
  some = Mul(x, half)
  y = Mul(some, above)
}}"""


@pytest.mark.parametrize(
    ("inner", "factor", "count"),
    [
        ("x", 0.70710678, 1),
        ("x", 0.707107, 1),  # with six of its digits
        ("z", 0.70710678, 0),
        ("x", 0.7, 0),
        ("x", -0.70710678, 0),
    ],
)
def test_a_name_is_one_tensor_and_a_factor_is_the_one_that_is_meant(
    inner: str, factor: float, count: int, tmp_path: Path
) -> None:
    """Nothing is computed: no comparison of results would undo what a pattern takes for its own."""
    onnx.save(model(GELU.format(inner=inner, factor=factor), 20), tmp_path / "in.onnx")
    trace = rewrite_model(
        tmp_path / "in.onnx", tmp_path / "out.onnx", target="11", rules=["gelu"], check=False
    )
    assert trace.counts.get("gelu", 0) == count
    assert trace.declined == ()


def test_a_square_is_no_product_of_unlike_factors(tmp_path: Path) -> None:
    square = """g (float[4] x) => (float[4] y) {
      two = Constant<value_float=2.0>()
      half = Constant<value_float=0.5>()
      squared = Pow(x, two)
      y = Mul(squared, half)
    }"""
    onnx.save(model(square, 20), tmp_path / "in.onnx")
    trace = rewrite_model(
        tmp_path / "in.onnx", tmp_path / "out.onnx", target="11", rules=["gelu"], check=False
    )
    assert trace.applied == ()
