"""GELUs between INT8 products take part in FP16 where that may pay; times come from a script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests.support.command_line import DIGITS
from tests.support.selection_builds import TRANSFORMER, build, script
from trtopt import targets


@pytest.fixture(autouse=True)
def gelus_may_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """On graphs as they are written for ONNX Runtime, too, with FP32 beside Q/DQ as on TensorRT 8.6."""
    rows = tuple(
        replace(row, half_gelu_pays=True, half_scales=False, weakly_typed=True) if row.name == "11" else row
        for row in targets.ROWS
    )
    monkeypatch.setattr(targets, "ROWS", rows)


def test_gelus_are_tried_in_fp16_beside_q_and_dq_in_fp32(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    times = script(monkeypatch, lambda *_: 1.0, fp16_1=1.0, int8_1=1.1, int8_half_1=0.9)
    manifest = build(TRANSFORMER, tmp_path / "out", calib, batch=(1,))
    assert times.in_turns[0] == (1, ("fp16", "int8", "int8.half"))
    assert manifest.verdict is not None
    assert manifest.verdict.batches[0].chosen == "int8.half"
    graph = manifest.graph_of(manifest.engines[0])
    assert graph.path == "model.int8.half.fp16.onnx"
    assert {"quantize.json", "cast.json"} <= {file.name for file in (tmp_path / "out").iterdir()}
    types = element_types(tmp_path / "out" / graph.path)
    assert types["Erf"] == [onnx.TensorProto.FLOAT16] * 3
    assert types["DequantizeLinear"] == [onnx.TensorProto.FLOAT] * len(types["DequantizeLinear"])


def element_types(model: Path) -> dict[str, list[int]]:
    """The types of nodes' outputs, by operator."""
    found: dict[str, list[int]] = {}
    graph = onnx.shape_inference.infer_shapes(onnx.load(model)).graph
    types = {item.name: item.type.tensor_type.elem_type for item in graph.value_info}
    for node in graph.node:
        found.setdefault(node.op_type, []).append(types.get(node.output[0], 0))
    return found


@pytest.mark.parametrize(("half", "chosen"), [(0.895, "int8"), (0.88, "int8.half")])
def test_they_must_gain_over_int8_without(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path, half: float, chosen: str
) -> None:
    script(monkeypatch, lambda *_: 1.0, fp16_1=1.0, int8_1=0.9, int8_half_1=half)
    manifest = build(TRANSFORMER, tmp_path / "out", calib, batch=(1,))
    assert manifest.verdict is not None
    assert manifest.verdict.batches[0].chosen == chosen


def test_with_attention_in_int8_gelus_are_not_tried(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    rows = tuple(replace(row, int8_attention_pays=row.name == "11") for row in targets.ROWS)
    monkeypatch.setattr(targets, "ROWS", rows)
    times = script(monkeypatch, lambda *_: 1.0, fp16_1=1.0, int8_1=0.9, int8_attention_1=0.8)
    build(TRANSFORMER, tmp_path / "out", calib, batch=(1,))
    assert times.in_turns[0] == (1, ("fp16", "int8", "int8.attention"))


def test_where_there_is_no_gelu_nothing_more_is_tried(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    times = script(monkeypatch, lambda *_: 1.0, fp16_1=1.0, int8_1=0.9)
    build(DIGITS, tmp_path / "out", calib, batch=(1,))
    assert times.in_turns[0] == (1, ("fp16", "int8"))
