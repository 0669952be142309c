"""What the folding rules leave alone, and that no NumPy warning is printed."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import pytest

from tests.rewrite_graphs import DECLINES, model
from trtopt.rewrite.rewrite import rewrite_model

_HUGE = """
    g (float[3] x) => (float[3] y) <int64[2] k = {20000,20000}, int64 i = {0}>
    {a = ConstantOfShape(k) b = Gather(a, i) c = Gather(b, i) y = Add(x, c)}"""
_BACKWARDS = """
    g (float[2,3,M] x) => (int64[P] y)
    <int64[1] o = {-1}, int64[1] e = {9223372036854775807}, int64[1] z = {0}>
    {s = Shape(x) a = Slice(s, o, e, z, o) y = Neg(a)}"""


@pytest.mark.parametrize(("rule", "text"), [("fold-constants", _HUGE), ("fold-shapes", _BACKWARDS)])
def test_what_would_be_huge_or_is_unclear_stays(rule: str, text: str, tmp_path: Path) -> None:
    onnx.save(model(text), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="11", rules=[rule], check=False)
    assert trace.counts == {}


def test_overflowing_constants_decline_without_a_warning(tmp_path: Path) -> None:
    for case in (item for item in DECLINES if "'s range" in item.reason):
        onnx.save(model(case.text, case.opset), tmp_path / "in.onnx")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rewrite_model(
                tmp_path / "in.onnx", tmp_path / "out.onnx", target="11", rules=[case.rule], check=False
            )
