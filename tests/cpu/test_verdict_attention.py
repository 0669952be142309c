"""INT8 in attention's products takes part where that may pay; times come from a script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests.support.command_line import DIGITS
from tests.support.selection_builds import TRANSFORMER, build, quantised, script
from trtopt import targets
from trtopt.workflows.build.quantize_by_measurement import quantize_where_it_pays
from trtopt.workflows.precision.quantize import Request, quantize


@pytest.fixture(autouse=True)
def attention_may_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """On graphs as they are written for ONNX Runtime, too."""
    rows = tuple(replace(row, int8_attention_pays=row.name == "11") for row in targets.ROWS)
    monkeypatch.setattr(targets, "ROWS", rows)


def test_attention_is_tried_in_int8_where_that_may_pay(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    speeds = {"fp16_1": 1.0, "int8_1": 1.1, "int8_attention_1": 0.9}
    times = script(monkeypatch, lambda *_: 1.0, **speeds)
    manifest = build(TRANSFORMER, tmp_path / "out", calib, batch=(1,))
    assert times.in_turns[0] == (1, ("fp16", "int8", "int8.attention"))
    assert manifest.verdict is not None
    assert manifest.verdict.batches[0].chosen == "int8.attention"
    (engine,) = manifest.engines
    graph = manifest.graph_of(engine)
    assert graph.path == "model.int8.attention.onnx"
    products = {f"blocks.{index}/{name}" for index in range(3) for name in ("MatMul", "MatMul_1")}
    assert quantised(tmp_path / "out" / graph.path) >= products


@pytest.mark.parametrize(("attention", "chosen"), [(0.895, "int8"), (0.88, "int8.attention")])
def test_it_must_gain_over_int8_without(
    monkeypatch: pytest.MonkeyPatch,
    calib: dict[Path, str],
    tmp_path: Path,
    attention: float,
    chosen: str,
) -> None:
    script(monkeypatch, lambda *_: 1.0, fp16_1=1.0, int8_1=0.9, int8_attention_1=attention)
    manifest = build(TRANSFORMER, tmp_path / "out", calib, batch=(1,))
    assert manifest.verdict is not None
    assert manifest.verdict.batches[0].chosen == chosen


@pytest.mark.parametrize(("attention", "ahead"), [(0.895, "int8"), (0.7, "int8.attention")])
def test_only_the_fastest_int8_is_built_again_without_what_loses(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path, attention: float, ahead: str
) -> None:
    speeds = {"fp16_1": 1.0, "int8_1": 0.9, "int8_attention_1": attention}
    times = script(
        monkeypatch, feed_forward_loses_ms, **speeds, **{f"{ahead.replace('.', '_')}_part1_1": 0.6}
    )
    manifest = build(TRANSFORMER, tmp_path / "out", calib, batch=(1,))
    assert times.in_turns[1:] == [(1, ("fp16", "int8", "int8.attention", f"{ahead}.part1"))]
    assert manifest.verdict is not None
    (verdict,) = manifest.verdict.batches
    assert verdict.chosen == f"{ahead}.part1"
    assert set(verdict.regions) == {"int8", "int8.attention"}
    (engine,) = manifest.engines
    assert [one.build_seconds for one in verdict.times][-1] == engine.build_seconds


def feed_forward_loses_ms(candidate: str, _batch: int, node: onnx.NodeProto) -> float:
    """INT8 halves every product but the first of each feed-forward, which takes twice as long."""
    if candidate == "fp16" or node.op_type != "MatMul":
        return 1.0 if node.op_type == "MatMul" else 0.015625
    return 2.0 if "fc1" in node.name else 0.5


def test_what_cannot_be_tried_keeps_nothing_from_being_built(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    whole = quantize(TRANSFORMER, tmp_path / "whole.onnx", Request("int8", "11", calib[TRANSFORMER]))
    assert whole.table is not None
    request = Request("int8", "11", table=tmp_path / "whole.onnx.calibration.json")
    assert measured(monkeypatch, tmp_path / "out.onnx", request) == (1, ("fp16", "int8"))


def test_products_that_the_user_excludes_are_not_tried(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    excluded = ("blocks.?/MatMul", "blocks.?/MatMul_1")
    request = Request("int8", "11", calib[TRANSFORMER], exclude=excluded)
    assert measured(monkeypatch, tmp_path / "out.onnx", request) == (1, ("fp16", "int8"))


def measured(monkeypatch: pytest.MonkeyPatch, out: Path, request: Request) -> tuple[int, tuple[str, ...]]:
    """The batch size of the transformer's first run in turns, and who is in it."""
    times = script(monkeypatch, lambda *_: 1.0, fp16_1=1.0, int8_1=0.9)
    quantize_where_it_pays(TRANSFORMER, out, request, batch=(1,), backend="onnxruntime")
    return times.in_turns[0]


def test_where_there_is_no_attention_nothing_more_is_tried(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    times = script(monkeypatch, lambda *_: 1.0, fp16_1=1.0, int8_1=0.9)
    build(DIGITS, tmp_path / "out", calib, batch=(1,))
    assert times.in_turns[0] == (1, ("fp16", "int8"))
