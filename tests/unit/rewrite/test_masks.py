"""Masks that are too large to be folded: none is stored where the target can cut them out."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.rewrite_graphs import model
from trtopt.rewrite.rewrite import rewrite_model

_PAIRS = """
    g (float[N,600,600] overlap, int64[N,600,600] group) => (float[N,600,600] drops)
    <float limit = {0.5}, int64 mine = {0}, float one = {1.0}, int64[2] size = {600,600}, int64 next = {1}>
    {a = Greater(overlap, limit) b = Equal(group, mine) c = Cast<to=1>(a) d = Cast<to=1>(b) e = Mul(c, d)
     f = Expand(one, size) before = Trilu<upper=1>(f, next) drops = Mul(e, before)}"""


def _operators(target: str, folder: Path) -> list[str]:
    """What is left of the suppression's mask over all pairs of boxes."""
    onnx.save(model(_PAIRS), folder / "in.onnx")
    trace = rewrite_model(folder / "in.onnx", folder / "out.onnx", target=target)
    assert trace.undone == ()
    assert {(item.rules, item.error) for item in trace.checked} == {("B", 0.0)}
    return [node.op_type for node in onnx.load(folder / "out.onnx").graph.node]


@pytest.mark.parametrize("target", ["10", "11", "rtx"])
def test_a_triangle_above_the_cap_is_cut_out_of_the_mask_itself(target: str, tmp_path: Path) -> None:
    assert _operators(target, tmp_path) == ["Greater", "Equal", "And", "Cast", "Trilu"]
    assert (tmp_path / "out.onnx").stat().st_size < 2000


def test_tensorrt_8_keeps_the_constant(tmp_path: Path) -> None:
    assert _operators("8.6", tmp_path)[-3:] == ["Expand", "Trilu", "Mul"]
