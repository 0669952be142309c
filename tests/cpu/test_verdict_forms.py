"""INT8 in the form that is expected to gain most, and others where a question is left; times are scripted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.networks import Net
from tests.support.selection_builds import TRANSFORMER, build, quantised, script
from trtopt.errors import BuildError
from trtopt.precision.placement import evidence
from trtopt.precision.placement.evidence import Measured
from trtopt.records import Manifest, OnnxArtifact
from trtopt.requests.models import QuantizeOptions
from trtopt.workflows.build import precision_selection
from trtopt.workflows.listener import Listener
from trtopt.workflows.precision.quantize import quantize
from trtopt.workflows.workbench import Workbench

ATTENTION, BOTH = "attention=on", "attention=on,smoothing=off"
PLACES = "attention qkv smoothing"


@pytest.fixture(autouse=True)
def forms_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """On ONNX Runtime, too, in the order of two rows."""
    monkeypatch.setattr(precision_selection, "ONNXRUNTIME", "none")
    rows = (row(ATTENTION, -0.2), row("", 0.1))
    monkeypatch.setattr(evidence, "ROWS", rows)


def row(forms: str, change: float, batch: int = 1) -> Measured:
    return Measured("a transformer", PLACES, batch, "", forms, change, None, "11")


def test_the_most_promising_form_alone_is_built_where_it_keeps_its_promise(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    times = script(monkeypatch, lambda *_: 1.0, **{"fp16_1": 1.0, f"int8.{ATTENTION}_1": 0.8})
    manifest = build(TRANSFORMER, tmp_path / "out", calib, batch=(1,))
    assert times.in_turns == [(1, ("fp16", f"int8.{ATTENTION}"))]
    assert chosen(manifest) == f"int8.{ATTENTION}"
    (engine,) = manifest.engines
    products = {f"blocks.{index}/{name}" for index in range(3) for name in ("MatMul", "MatMul_1")}
    assert quantised(tmp_path / "out" / manifest.graph_of(engine).path) >= products


def chosen(manifest: Manifest) -> str:
    assert manifest.verdict is not None
    return manifest.verdict.batches[0].chosen


@pytest.mark.long
def test_each_batch_size_has_an_order_of_its_own_and_another_form_is_built_where_the_first_disappoints(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    monkeypatch.setattr(evidence, "ROWS", (*evidence.ROWS, row(ATTENTION, 0.05, 64), row("", -0.1, 64)))
    speeds = {"fp16_1": 1.0, f"int8.{ATTENTION}_1": 1.3, "int8_1": 0.9, "fp16_64": 1.0, "int8_64": 0.8}
    times = script(monkeypatch, lambda *_: 1.0, **speeds)
    manifest = build(TRANSFORMER, tmp_path / "out", calib, batch=(1, 64))
    assert times.in_turns == [
        (1, ("fp16", f"int8.{ATTENTION}")),
        (64, ("fp16", "int8")),
        (1, ("fp16", f"int8.{ATTENTION}", "int8")),
    ]
    assert manifest.verdict is not None
    assert [one.chosen for one in manifest.verdict.batches] == ["int8", "int8"]


def test_the_budget_bounds_the_builds_and_what_it_leaves_out_is_said(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    speeds = {"fp16_1": 1.0, f"int8.{ATTENTION}_1": 1.3}
    times = script(monkeypatch, lambda *_: 1.0, **speeds)
    told: list[str] = []
    build(
        TRANSFORMER, tmp_path / "out", calib, batch=(1,), selection_budget=1,
        listener=Listener(note=told.append),
    )  # fmt: skip
    assert times.in_turns == [(1, ("fp16", f"int8.{ATTENTION}"))]
    assert any("batch1: not tried: no form" in line and "--selection-budget 2" in line for line in told)


@pytest.mark.long
def test_winners_are_combined(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    monkeypatch.setattr(evidence, "ROWS", (row(ATTENTION, -0.2), row("smoothing=off", -0.2)))
    speeds = {f"int8.{ATTENTION}_1": 0.9, "int8.smoothing=off_1": 0.88, f"int8.{BOTH}_1": 0.8, "fp16_1": 1.0}
    script(monkeypatch, lambda *_: 1.0, **speeds)
    assert chosen(build(TRANSFORMER, tmp_path / "out", calib, batch=(1,))) == f"int8.{BOTH}"


@pytest.mark.long
def test_among_forms_as_fast_the_most_accurate_is_taken(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    monkeypatch.setattr(evidence, "ROWS", (row(ATTENTION, -0.2), row("", -0.2)))
    speeds = {"fp16_1": 1.0, f"int8.{ATTENTION}_1": 0.9, "int8_1": 0.905}
    script(monkeypatch, lambda *_: 1.0, **speeds)
    verdict = build(TRANSFORMER, tmp_path / "out", calib, batch=(1,)).verdict
    assert verdict is not None
    ratios = {one.name: one.differences[0].sqnr_db or 0.0 for one in verdict.candidates}
    best = max(("int8", f"int8.{ATTENTION}"), key=ratios.__getitem__)
    assert verdict.batches[0].chosen == best


@pytest.mark.long
def test_a_form_that_cannot_be_built_is_left_out_and_no_form_at_all_is_an_error(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    real, refused = Workbench.build, [ATTENTION]

    def building(self: Workbench, graphs: Sequence[OnnxArtifact], *rest: Any) -> object:
        if any(form in str(graphs[0]) for form in refused):
            raise BuildError("no kernel", "none")
        return real(self, graphs, *rest)

    monkeypatch.setattr(Workbench, "build", building)
    script(monkeypatch, lambda *_: 1.0, fp16_1=1.0, int8_1=0.9)
    assert chosen(build(TRANSFORMER, tmp_path / "out", calib, batch=(1,))) == "int8"
    refused.append("model.int8.onnx")
    with pytest.raises(BuildError, match="no kernel"):
        build(TRANSFORMER, tmp_path / "none", calib, batch=(1,))


@pytest.mark.long
def test_where_no_form_meets_the_bound_the_nearest_is_named(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    script(monkeypatch, lambda *_: 1.0, fp16_1=1.0)
    told: list[str] = []
    manifest = build(
        TRANSFORMER, tmp_path / "out", calib, batch=(1,), min_sqnr=60.0,
        listener=Listener(note=told.append),
    )  # fmt: skip
    assert chosen(manifest) == "fp16"
    assert any("no form of INT8 meets the bounds; int8" in line and "comes nearest" in line for line in told)


def test_the_form_that_the_user_names_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    times = script(monkeypatch, lambda *_: 1.0, **{"fp16_1": 1.0, "int8.smoothing=off_1": 1.2})
    build(TRANSFORMER, tmp_path / "out", calib, batch=(1,), forms="smoothing=off")
    assert times.in_turns == [(1, ("fp16", "int8.smoothing=off"))]


@pytest.mark.long
def test_products_that_the_user_excludes_are_no_place_for_a_form(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    times = script(monkeypatch, lambda *_: 1.0, fp16_1=1.0, int8_1=0.9)
    excluded = ("blocks.?/MatMul", "blocks.?/MatMul_1")
    build(TRANSFORMER, tmp_path / "out", calib, batch=(1,), exclude=excluded)
    assert times.in_turns[0] == (1, ("fp16", "int8"))


# ── the graphs of forms ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("forms", "half"),
    [("gelu=half", {"Erf"}), ("rest=half", {"Erf", "LayerNormalization"}), ("", set())],
)
def test_what_a_form_has_in_fp16_lies_between_q_and_dq_in_fp32(
    calib: dict[Path, str], tmp_path: Path, forms: str, half: set[str]
) -> None:
    types = element_types(written(calib, tmp_path, forms))
    for op in ("Erf", "LayerNormalization"):
        wanted = onnx.TensorProto.FLOAT16 if op in half else onnx.TensorProto.FLOAT
        assert set(types[op]) == {wanted}
    assert set(types["DequantizeLinear"]) == {onnx.TensorProto.FLOAT}


def test_products_of_one_input_are_merged_before_they_are_quantised(tmp_path: Path) -> None:
    net = Net(x=["N", 8, 32])
    total = net.node("Add", "sum", net.linear("q", "x", 32, 32), net.linear("k", "x", 32, 32))
    onnx.save(net.model(total), tmp_path / "net.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((4, 8, 32), np.float32))
    request = QuantizeOptions(
        precision="int8",
        target="8.6",
        data=str(tmp_path / "x.npz"),
        method="max",
        forms="qkv=merged",
    )
    quantize(tmp_path / "net.onnx", tmp_path / "q.onnx", request)
    assert len(quantised(tmp_path / "q.onnx")) == 1


def written(calib: dict[Path, str], folder: Path, forms: str) -> Path:
    request = QuantizeOptions(
        precision="int8", target="8.6", data=calib[TRANSFORMER], method="max", forms=forms
    )
    quantize(TRANSFORMER, folder / "q.onnx", request)
    return folder / "q.onnx"


def element_types(model: Path) -> dict[str, list[int]]:
    """The types of nodes' outputs, by operator."""
    found: dict[str, list[int]] = {}
    graph = onnx.shape_inference.infer_shapes(onnx.load(model)).graph
    types = {item.name: item.type.tensor_type.elem_type for item in (*graph.value_info, *graph.output)}
    for node in graph.node:
        found.setdefault(node.op_type, []).append(types.get(node.output[0], 0))
    return found
